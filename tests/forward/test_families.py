"""Families of models in GGUF files: logits and texts of transformers, on random weights."""

import numpy as np
import pytest
import torch

from gguf_families import FAMILIES, tiny, write_family
from models import decodes_alike, mixed_drafter, oracle_drafter
from specds import generate
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.models.gguf_model import load_gguf

TOKENS = np.random.default_rng(5).integers(0, 256, 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, family):
    model = tiny(family)
    path = write_family(tmp_path / "model.gguf", family, model)
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    core = ForwardModel(GgufFile(path))
    logits = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits, expected, atol=1e-4 * expected.std())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "phi3, long"])
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_logits_are_equal_to_the_bit_in_any_company(tmp_path, family, activations):
    core = ForwardModel(GgufFile(write_family(tmp_path / "model.gguf", family, tiny(family))))
    alone, cache = [], ForwardCache(core)
    for token in TOKENS:
        alone.append(core.forward(cache, [(0, [token], None, 1)], activations=activations)[0])
        cache.commit(0, [0])
    cache = ForwardCache(core, 2)
    options = {"activations": activations, "num_threads": 3}
    inputs = [(1, TOKENS[:70], None, 70), (0, TOKENS[:9], None, 9)]
    together = core.forward(cache, inputs, **options)
    np.testing.assert_array_equal(together, [*alone[:70], *alone[:9]])
    cache.commit(1, range(70))
    tree, parents, path = [], [], []
    for token in TOKENS[70:]:
        parent = path[-1] if path else -1
        tree += [3, token]
        parents += [parent, parent]
        path.append(len(tree) - 1)
    logits = core.forward(cache, [(1, tree, parents, len(tree))], **options)
    np.testing.assert_array_equal(logits[path], alone[70:])
    cache.commit(1, path[:10])
    logits = core.forward(cache, [(1, TOKENS[80:], None, 20)], **options)
    np.testing.assert_array_equal(logits, alone[80:])


@pytest.mark.parametrize("family", ["gemma2", "gemma3n", "gemma4"])
def test_states_of_a_row_continue_in_another_cache(tmp_path, family):
    core = ForwardModel(GgufFile(write_family(tmp_path / "model.gguf", family, tiny(family))))
    cache, other = ForwardCache(core), ForwardCache(core)
    core.forward(cache, [(0, TOKENS[:70], None, 0)])
    cache.commit(0, range(70))
    other.append(0, cache.states(0))
    rest = [(0, TOKENS[70:], None, 30)]
    np.testing.assert_array_equal(core.forward(other, rest), core.forward(cache, rest))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_with_drafts_are_those_of_transformers(tmp_path, family):
    model = tiny(family)
    path = write_family(tmp_path / "model.gguf", family, model)
    native, _ = load_gguf(path, framework="transformers")
    ids = torch.from_numpy(TOKENS[:21])[None]
    mode = {"max_new_tokens": 32, "do_sample": False}
    expected = model.generate(ids, **mode, eos_token_id=native.config.eos_token_id)
    assert native.generate(ids, **mode).tolist() == expected.tolist()
    size = native.vocab_size
    num_accepted = 0
    for drafter in (
        lambda text: mixed_drafter(text, size),
        lambda text: oracle_drafter(text, vocab_size=size),
        lambda text: oracle_drafter(text, 2, size),
    ):
        output = decodes_alike(native, drafter, ids=ids, mode=mode)
        assert output.sequences.tolist() == expected.tolist()
        num_accepted += output.stats.num_accepted_tokens
    assert num_accepted > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_is_that_of_the_model(tmp_path, family):
    config = tiny(family).config
    path = write_family(tmp_path / "model.gguf", family, tiny(family))
    found = load_gguf(path, framework="transformers")[0].config
    assert found.model_type == config.model_type
    own = {
        "eos_token_id",
        "transformers_version",
        "architectures",
        "dtype",
        "pad_token_id",
        "_name_or_path",
        "allow_global_per_layer_attribute_access",
    }
    is_phi3 = family.startswith("phi3")
    own |= {"rope_parameters"} if family in ("llama", "olmo3") or is_phi3 else set()
    own |= {"original_max_position_embeddings"} if is_phi3 else set()
    stated, read = _plain(config.to_dict()), _plain(found.to_dict())
    assert {name: read.get(name) for name in stated.keys() - own} == {
        name: stated[name] for name in stated.keys() - own
    }


@pytest.fixture
def long(tmp_path):
    """A model whose texts of more than 32 tokens have other rotations, and the core of its file."""
    model = tiny("phi3, long")
    path = write_family(tmp_path / "model.gguf", "phi3, long", model)
    return model, ForwardModel(GgufFile(path))


def test_rotations_are_chosen_by_the_length_of_a_text(long):
    model, core = long
    assert core.short_context == 32
    states = ForwardCache(core, 2)
    for length in (20, 31, 32, 33, 34, 60, 33, 32, 10, 40):
        with torch.no_grad():
            expected = model(torch.from_numpy(TOKENS[:length])[None]).logits[0, -1].numpy()
        fresh = core.forward(ForwardCache(core), [(0, TOKENS[:length], None, 1)])
        np.testing.assert_allclose(fresh[0], expected, atol=1e-4 * expected.std())
        # The other row continues at any length, also back below that of short texts.
        states.truncate(0, min(states.length(0), length - 1))
        rest = TOKENS[states.length(0) : length]
        logits = core.forward(states, [(0, rest, None, 1)])
        np.testing.assert_array_equal(logits, fresh)
        states.commit(0, range(len(rest)))
        states.copy(0, 1)
        again = TOKENS[length : length + 1]
        copied = core.forward(states, [(1, again, None, 1), (0, again, None, 1)])
        np.testing.assert_array_equal(copied[0], copied[1])


def test_trees_above_the_short_context_have_long_rotations(long):
    _, core = long
    whole = core.forward(ForwardCache(core), [(0, TOKENS[:34], None, 4)])
    states = ForwardCache(core)
    core.forward(states, [(0, TOKENS[:30], None, 1)])
    states.commit(0, range(30))
    tree, parents = [3, *TOKENS[30:34], 7], [-1, -1, 1, 2, 3, 2]
    logits = core.forward(states, [(0, tree, parents, 6)])
    np.testing.assert_array_equal(logits[1:5], whole)
    states.commit(0, [1, 2])
    # Its path is not above it any more: all tokens are computed again.
    short = core.forward(ForwardCache(core), [(0, TOKENS[:32], None, 1)])
    assert np.abs(short[0] - whole[1]).max() > 1e-2 * short.std()
    states.truncate(0, 31)
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[31:32], None, 1)]), short)


def test_pass_that_fails_while_it_computes_again_keeps_the_states(long):
    _, core = long
    states = ForwardCache(core)
    core.forward(states, [(0, TOKENS[:32], None, 1)])
    states.commit(0, range(32))

    def stop(_):
        raise KeyboardInterrupt

    expected = core.forward(states, [(0, TOKENS[32:33], None, 1)])
    states.truncate(0, 31)
    before = core.forward(states, [(0, TOKENS[31:32], None, 1)])
    for wrong in ([], [-1]):
        with pytest.raises((KeyboardInterrupt, ValueError)):
            core.forward(states, [(0, [5, *wrong] * 20, [-1, *range(39)], 1)], poll=stop)
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[31:32], None, 1)]), before)
    states.commit(0, [0])
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[32:33], None, 1)]), expected)
    for change in (lambda: states.states(0), lambda: states.append(0, np.zeros(8, np.float32))):
        with pytest.raises(ValueError, match="whose rotations depend on the length"):
            change()


@pytest.mark.parametrize("num_tokens", [20, 32, 33, 50])
def test_drafts_keep_to_one_side_of_the_short_context(tmp_path, long, num_tokens):
    model, path = long[0], tmp_path / "model.gguf"
    native, _ = load_gguf(path, framework="numpy")
    ids = TOKENS[None, :num_tokens]
    mode = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    expected = model.generate(torch.from_numpy(ids), **mode)[0].tolist()
    for max_nodes in (0, 4, 16):
        drafter = oracle_drafter(expected, vocab_size=native.vocab_size)
        options = {"stream_interval": 2} if max_nodes == 4 else {}
        output = generate(native, ids, drafter, max_nodes=max_nodes, **options, **mode)
        assert output.sequences[0].tolist() == expected
        assert max_nodes == 0 or output.stats.num_accepted_tokens > 10


@pytest.mark.parametrize(
    ("family", "fields", "missing", "reason"),
    [
        ("phi3, long", {"rope.scaling.type": "dynamic"}, (), 'scales rotations by "dynamic"'),
        ("phi3, long", {"rope.scaling.type": "yarn"}, (), "scales rotations in two ways"),
        ("phi3, long", {}, ("rope_factors_long.weight",), "no tensor rope_factors_long.weight"),
        ("gemma3n", {"altup.active_idx": 1}, (), "another stream of states"),
        ("gemma3n", {"activation_sparsity_scale": 1.0}, (), "not one number for each layer"),
        ("gemma3n", {}, ("blk.0.laurel_l.weight",), "has no tensor blk.0.laurel_l.weight"),
        (
            "gemma3n",
            {"embedding_length_per_layer_input": 64},
            (),
            "has per_layer_token_embd.weight",
        ),
        ("gemma4", {"attention.shared_kv_layers": 6}, (), "share keys that no layer has"),
        ("gemma4", {"rope.dimension_count_swa": 32}, (), "more dimensions than heads have"),
        ("gemma4", {"attention.head_count_kv": [2, 2, 2, 2, 1, 2]}, (), "keys of another shape"),
    ],
)
def test_files_that_are_not_computed_are_rejected(tmp_path, family, fields, missing, reason):
    path, architecture = tmp_path / "model.gguf", FAMILIES[family].architecture
    fields = {f"{architecture}.{name}": value for name, value in fields.items()}
    write_family(path, family, tiny(family), fields, missing)
    with pytest.raises(ValueError, match=reason):
        ForwardModel(GgufFile(path))


def _plain(value):
    """Round numbers to the precision of a file."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value
