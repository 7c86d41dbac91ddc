"""Results in notebooks, and pickling of drafters."""

import pickle

import pytest

import specds
from specds import Datastore, EngineDrafter, FusedConfig, FusedDrafter, Memory, TokenTree, generate
from specds.models import html
from specds.models.render import TreeText


def test_output_shows_text_with_drafted_tokens_in_color(tiny_model):
    model, tokenizer = tiny_model
    ids = tokenizer("def add(a, b):\n    return a\n" * 4, return_tensors="pt")["input_ids"]
    output = generate(
        model, ids, max_nodes=16, max_new_tokens=16, do_sample=False, tokenizer=tokenizer
    )
    page = output._repr_html_()
    assert any(output.drafted_by_row[0])
    assert "<span style='color:" in page
    assert "16 tokens in" in page
    assert "&lt;" in html.text([("a < b", False)])


def test_trees_datastores_and_statistics_have_html(tmp_path):
    page = TokenTree([7, 8], [-1, 0], [0.5, 0.25])._repr_html_()
    inner = "<ul><li><code>8 (25%)</code></li></ul>"
    assert page == f"<ul><li><code>7 (50%)</code>{inner}</li></ul>"
    specds.build_from_token_ids([[1, 2, 3]], tmp_path / "d", vocab_size=10)
    assert "num tokens" in Datastore(tmp_path / "d")._repr_html_()
    assert "share of time: draft" in specds.GenerationStats()._repr_html_()


def test_trees_have_the_texts_of_their_tokens(demo_tokenizer):
    first, second, other = demo_tokenizer.encode("a <b")[:2] + demo_tokenizer.encode(" c")[:1]
    tree = TokenTree([first, other, second], [-1, -1, 0], [0.5, 0.25, 0.125])
    shown = TreeText(tree, demo_tokenizer)
    texts = [demo_tokenizer.decode([token]) for token in (first, other, second)]
    assert str(shown) == f"{texts[0]!r} (50%)\n{texts[1]!r} (25%)\n  {texts[2]!r} (12%)"
    page = shown._repr_html_()
    assert html.escape(repr(texts[2])) in page
    assert page.count("<code>") == 3


def test_pickled_drafter_has_the_same_configuration_and_an_empty_memory(tmp_path):
    specds.build_from_token_ids([[1, 2, 3]], tmp_path / "d", vocab_size=10)
    drafter = FusedDrafter(tmp_path / "d", FusedConfig(recycled=False))
    drafter.memory.insert("", [1, 2, 3])
    copy = pickle.loads(pickle.dumps(drafter))
    assert (copy.config, copy.datastore.path) == (drafter.config, drafter.datastore.path)
    assert copy.memory.num_tokens == 0
    assert copy.memory.max_bytes == drafter.memory.max_bytes
    assert pickle.loads(pickle.dumps(FusedDrafter())).memory is None


@pytest.mark.parametrize("value", [EngineDrafter(vocab_size=10), Memory(10)], ids=type)
def test_pickle_error_names_how_processes_share(value):
    with pytest.raises(TypeError, match=r"make one in each process.*Memory\.share"):
        pickle.dumps(value)
