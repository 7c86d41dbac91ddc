"""Token healing: unfinished words in queries and in prompts, against plain references."""

import io
import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specds import Datastore, build_datastore
from specds.constraints.of_beginning import BeginningConstraint
from specds.models.healing import Spellings, completions, num_unfinished

CODE = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('x')\n"
    "args = parser.parse_args()\nprint(args.argument, args.arguments)\n\n"
) * 3


@pytest.fixture(scope="module")
def spellings(demo_tokenizer):
    return Spellings(demo_tokenizer)


@pytest.fixture(scope="module")
def datastore(tmp_path_factory, demo_tokenizer):
    folder = tmp_path_factory.mktemp("healing")
    (folder / "a.txt").write_text(CODE)
    out = folder / "a.specds"
    build_datastore(str(folder / "a.txt"), demo_tokenizer, out, tokenizer_name="demo")
    return Datastore(out)


def test_tokens_that_begin_so_are_those_of_a_plain_search(demo_tokenizer, spellings):
    vocabulary, special = demo_tokenizer.get_vocab(), {*demo_tokenizer.all_special_ids}
    assert special
    for start in ("im", "Ġarg", "Ġ", "zqzq", "<"):
        plain = {token for text, token in vocabulary.items() if text.startswith(start)} - special
        assert {*spellings.beginning_with(start)} == plain


def plain_completions(datastore, tokenizer, ids, max_match=16):
    """Try each number of last tokens, each token of the vocabulary, each length of the context."""
    vocabulary = {token: text for text, token in tokenizer.get_vocab().items()}
    special = {*tokenizer.all_special_ids}
    lengths = [0, *(n for n in range(1, min(max_match, len(ids)) + 1) if datastore.count(ids[-n:]))]
    best = len(ids) - max(lengths)
    found = None
    for number in range(1, min(4, len(ids)) + 1):
        before, last = ids[:-number], ids[-number:]
        spelled = "".join(vocabulary[token] for token in last)
        longer = [
            t for t, text in vocabulary.items() if text.startswith(spelled) and t not in special
        ]
        if not {*longer} - {*last}:
            continue
        for length in range(min(max_match - 1, len(before)), -1, -1):
            start = len(before) - length
            counts = (
                {t: datastore.count([*before[start:], t]) for t in longer} if start < best else {}
            )
            if any(counts.values()):
                best, found = start, (before, length, {t: n for t, n in counts.items() if n})
                break
    return found


TYPED = (
    *("parser = argparse.Argum", "return argparse.Ar", "args = par", "print(args.argument"),
    *("xyz pars", "import ", "zzz", "p"),
    "parser.add_argument('x')\nargs = parser.parse_args()\nprint(args.ar",
)


@pytest.mark.parametrize("typed", TYPED)
def test_completions_are_those_of_a_plain_search(datastore, demo_tokenizer, spellings, typed):
    ids = demo_tokenizer.encode(typed, add_special_tokens=False)
    expected = plain_completions(datastore, demo_tokenizer, ids)
    found = completions(datastore, demo_tokenizer, spellings, ids)
    assert (found is None) == (expected is None)
    if found is not None:
        before, length, counts = expected
        assert (found.context, found.length) == (before, length)
        assert dict(zip(found.token_ids.tolist(), found.counts.tolist(), strict=True)) == counts
        assert [*found.counts] == sorted(found.counts, reverse=True)


def test_lookup_of_an_unfinished_word_has_the_words_that_begin_so(run, datastore):
    def looked_up(text, *options):
        return json.loads(run("lookup", datastore.path, text, "--json", *options)[1])

    found = looked_up("parser = argparse.Argum", "--occurrences", 1)
    assert found["unfinished"] == "um"
    assert [row["text"] for row in found["continuations"]] == ["ument"]
    assert found["match_text"] == "parser = argparse.Arg"
    assert found["occurrences"][0]["match"].endswith("parser = argparse.Argument")
    whole = looked_up("parser = argparse")
    assert (whole["unfinished"], whole["match_length"]) == (None, 4)
    assert [row["text"] for row in whole["continuations"]] == ["."]
    _, out, err = run("lookup", datastore.path, "print(args.ar")
    assert "with tokens that begin with 'ar'" in out
    assert err == ""


@given(st.sampled_from(["Ġarg", "um", "import", "(", "ĠĠ"]), st.data())
def test_mask_allows_what_can_be_pushed(spellings, beginning, data):
    size = max(spellings.by_token) + 3
    constraint = BeginningConstraint(spellings, beginning, size)
    spelled, pushed = "", 0
    while not constraint.ended:
        allowed = np.flatnonzero(constraint.mask()).tolist()
        some = data.draw(st.lists(st.integers(0, size - 1), max_size=50))
        for token in {*some, *allowed[:50]}:
            can = constraint.push(token)
            assert can == (token in allowed), token
            constraint.pop(int(can))
        token = data.draw(st.sampled_from(allowed))
        assert constraint.push(token)
        spelled, pushed = spelled + spellings.by_token[token], pushed + 1
    assert spelled.startswith(beginning)
    assert constraint.mask().all()
    constraint.pop(pushed)
    assert not constraint.ended


PROMPT = "import os\nimport sys\nimpor"


def test_healed_text_is_that_of_the_model_under_the_same_mask(run, tiny_model, spellings):
    model, tokenizer = tiny_model
    options = ("generate", "--model", "demo-tiny", "--max-new-tokens", 12, "--temperature", 0)

    def text(*more):
        code, out, err = run(*options, "--json", PROMPT, *more)
        assert code == 0, err
        return json.loads(out)

    ids = tokenizer.encode(PROMPT)
    number = num_unfinished(spellings, ids[1:])
    beginning = spellings.of(ids[-number:])
    assert number > 0
    start = torch.tensor([ids[:-number]])

    def allowed(_, tokens):
        new = "".join(spellings.by_token[token] for token in tokens[start.shape[1] :].tolist())
        if len(new) >= len(beginning):
            return [*range(model.config.vocab_size)]
        left = beginning[len(new) :]
        return [
            token
            for token, spelled in spellings.by_token.items()
            if spelled and (spelled.startswith(left) or left.startswith(spelled))
        ]

    expected = model.generate(
        start,
        attention_mask=torch.ones_like(start),
        max_new_tokens=12,
        do_sample=False,
        prefix_allowed_tokens_fn=allowed,
    )[0, start.shape[1] :].tolist()
    for nodes in (0, 8, "auto"):
        healed = text("--heal", "--max-nodes", nodes)
        assert healed["token_ids"] == expected
        assert healed["text"] == tokenizer.decode(expected)[len("impor") :][-len(healed["text"]) :]
    assert (PROMPT + healed["text"]).startswith("import os\nimport sys\nimport ")
    assert text()["token_ids"] != expected, "the control"


def test_terminal_and_pipe_get_the_completion_alone(run, tmp_path, monkeypatch):
    options = ("generate", "--model", "demo-tiny", "--max-new-tokens", 6, "--temperature", 0)
    (tmp_path / "some.txt").write_text(f"{PROMPT.splitlines()[-1]}\nx = (\n")
    _, out, _ = run(*options, "--heal", "--prompts", tmp_path / "some.txt", "--json")
    assert len(out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    _, out, _ = run(*options, "--heal", "-")
    assert out.startswith("t ")
    code, _, err = run(*options, "--heal", "--regex", "a", PROMPT)
    assert code == 2
    assert "--heal and a grammar are mutually exclusive" in err
