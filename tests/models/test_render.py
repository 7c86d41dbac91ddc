"""Tokens as text: as they continue what stands before them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specds.drafters import TokenTree
from specds.models.render import Spelling, text_after, tree_in_words


class Strips:
    """A tokenizer that drops a text's first space, as the Llama family does."""

    words = (" is", " it", "?", "\n", " ")

    def decode(self, ids):
        return "".join(self.words[id] for id in ids).removeprefix(" ")


@given(st.lists(st.integers(0, 4), min_size=1), st.lists(st.integers(0, 4)))
def test_a_token_keeps_the_space_that_it_begins_with(before, tokens):
    expected = "".join(Strips.words[token] for token in tokens)
    assert text_after(Strips(), before, tokens) == expected
    assert text_after(Strips(), [], tokens) == expected.removeprefix(" ")


class ByteCodec:
    """A tokenizer of bytes, which counts the tokens that it decodes."""

    num_decoded = 0

    def decode(self, ids):
        self.num_decoded += len(ids)
        return bytes(ids).decode(errors="replace")


PARTS = st.lists(st.sampled_from([*map(bytes, ([97], [10], [32], [255], [226, 130]))]))


@given(st.lists(st.text(max_size=9).map(str.encode) | PARTS.map(b"".join), max_size=9))
def test_text_of_tokens_one_by_one_is_that_of_all(parts):
    whole = b"".join(parts)
    spelling = Spelling(ByteCodec())
    assert "".join(map(spelling.of, [*whole, None])) == whole.decode(errors="replace")


@pytest.mark.parametrize("text", [b"a", "€".encode(), b"\xff", b"\xe2\x82", b"ab c\n"])
def test_a_token_is_spelled_by_decoding_a_few(text):
    tokenizer, most = ByteCodec(), 0
    spelling = Spelling(tokenizer)
    for token in text * 2000:
        before = tokenizer.num_decoded
        spelling.of(token)
        most = max(most, tokenizer.num_decoded - before)
    assert most <= 32


def test_nodes_are_what_follows_their_path():
    tree = TokenTree([0, 1, 2], [-1, 0, 1], [0.5, 0.25, 0.125])
    told = tree_in_words(Strips(), tree, [3])
    assert told["text"] == [" is", " it", "?"]
    assert told["parents"] == [-1, 0, 1]
    assert told["probs"] == [0.5, 0.25, 0.125]
    assert told["sources"] == ["other"] * 3


def test_lookup_completes_a_space_at_the_end_or_hints_at_it(run, tmp_path):
    (tmp_path / "a.txt").write_text("return a + b\n" * 3)
    store = tmp_path / "a.specds"
    built = run("build", "--corpus", tmp_path / "a.txt", "--tokenizer", "demo", "--out", store)
    assert built[0] == 0
    completed = run("lookup", store, "return a ")
    assert "' +'" in completed[1]
    assert completed[2] == ""
    assert "ends in a space" in run("lookup", store, "  ")[2]
    assert run("lookup", store, "return a")[2] == ""
    assert "nothing of this text occurs" in run("lookup", store, "雪")[1]
