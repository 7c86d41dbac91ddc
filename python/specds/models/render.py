"""Text of tokens, trees and matches, with the text around them."""

from collections.abc import Sequence
from typing import Any

from specds._core import SOURCES, Datastore, TokenTree
from specds.models import html
from specds.models.tokenization import Tokenizer

# Enough that a character or a joined space is whole.
_BEFORE = 4
# Tokens that are decoded at once, if their characters never end.
_MOST = 16
_AROUND = 24


class Spelling:
    """Incremental detokenization, because a character may need several tokens.

    Each call decodes a few tokens, however long the text is.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The last tokens, how many of them end with a whole character, and what was returned of
        # their text.
        self._token_ids: list[int] = []
        self._num_whole = 0
        self._told = ""

    def of(self, token_id: int | None) -> str:
        """Return the text that a token adds; None flushes the rest."""
        self._token_ids += [] if token_id is None else [token_id]
        text = str(self._tokenizer.decode(self._token_ids))
        waiting = 0 if token_id is None else _num_waiting(text)
        end = max(len(text) - waiting, len(self._told))
        new, self._told = text[len(self._told) : end], text[:end]
        if waiting == 0 and len(self._token_ids) - self._num_whole >= _BEFORE:
            self._drop(self._num_whole, waiting)
            self._num_whole = len(self._token_ids)
        elif len(self._token_ids) > _MOST:
            self._drop(_BEFORE, waiting)
            self._num_whole = max(self._num_whole - _BEFORE, 0)
        return new

    def _drop(self, number: int, waiting: int) -> None:
        """Drop the first tokens."""
        del self._token_ids[:number]
        text = str(self._tokenizer.decode(self._token_ids))
        self._told = text[: len(text) - waiting]


def _num_waiting(text: str) -> int:
    """Return how many characters at the end of a text later tokens may complete."""
    # Of a character of four bytes, up to three are there.
    return min(len(text) - len(text.rstrip("\N{REPLACEMENT CHARACTER}")), 3)


def text_after(tokenizer: Tokenizer, before: Sequence[int], token_ids: Sequence[int]) -> str:
    """Return the text that tokens add to a context; alone, some tokenizers drop a leading space."""
    context = [int(token) for token in before[-_BEFORE:]]
    told = str(tokenizer.decode(context)) if context else ""
    return str(tokenizer.decode([*context, *map(int, token_ids)]))[len(told) :]


def tree_in_words(tokenizer: Tokenizer, tree: TokenTree, before: Sequence[int]) -> dict[str, Any]:
    """Return the nodes of a draft: `text`, `parents`, `probs` and `sources`, one element each."""
    paths: list[list[int]] = []
    texts = []
    parents = tree.parents.tolist()
    for token, parent in zip(tree.token_ids.tolist(), parents, strict=True):
        above = paths[parent] if parent >= 0 else []
        texts.append(text_after(tokenizer, [*before[-_BEFORE:], *above], [token]))
        paths.append([*above, token])
    return {
        "text": texts,
        "parents": parents,
        "probs": [round(prob, 4) for prob in tree.probs.tolist()],
        "sources": [SOURCES[source] for source in tree.sources.tolist()],
    }


class TreeText:
    """A draft with the texts of its tokens, for notebooks and `print`.

    Args:
        tree: The draft.
        tokenizer: Its tokenizer.
        context: The tokens before the draft, which some tokenizers need for spaces.
    """

    def __init__(self, tree: TokenTree, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self.tree = tree
        self.texts: list[str] = tree_in_words(tokenizer, tree, context)["text"]

    def __str__(self) -> str:
        """Return a line for each token, indented by its depth."""
        depths: list[int] = []
        for parent in self.tree.parents.tolist():
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        rows = zip(depths, self.texts, self.tree.probs.tolist(), strict=True)
        return "\n".join(f"{'  ' * depth}{text!r} ({prob:.0%})" for depth, text, prob in rows)

    def _repr_html_(self) -> str:
        return html.tree_html(self.tree, self.texts)


def known_from(
    datastore: Datastore,
    tokenizer: Tokenizer,
    context: Sequence[int],
    *,
    max_match: int = 16,
    num_passages: int = 3,
) -> dict[str, Any]:
    """Return the match of a context's end: `length`, `count`, `text`, and some `passages`."""
    match = datastore.lookup(context, max_match=max_match)
    start = len(context) - match.length
    return {
        "length": match.length,
        "count": match.count,
        "text": text_after(tokenizer, context[:start], context[start:]),
        "passages": [
            passage(datastore, tokenizer, int(position), match.length)
            for position in datastore.positions(match, num_passages)
        ],
    }


def passage(
    datastore: Datastore, tokenizer: Tokenizer, position: int, length: int
) -> dict[str, Any]:
    """Return the text around a position: `source`, `document`, `before`, `match`, `after`."""
    document = datastore.document_at(position)
    tokens, start = document.token_ids.tolist(), position - document.start
    end = start + length
    first = max(start - _AROUND, 0)
    return {
        "position": position,
        "document": document.index,
        "source": datastore.source(document.index),
        "before": text_after(tokenizer, tokens[:first], tokens[first:start]),
        "match": text_after(tokenizer, tokens[:start], tokens[start:end]),
        "after": text_after(tokenizer, tokens[:end], tokens[end : end + _AROUND]),
    }
