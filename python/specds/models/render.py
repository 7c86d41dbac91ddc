"""Text of tokens, trees and matches, with the text around them."""

from collections.abc import Sequence
from typing import Any

from specds._core import SOURCES, Datastore, TokenTree
from specds.models.tokenization import Tokenizer

# Enough that a character or a joined space is whole.
_BEFORE = 4
_AROUND = 24


class Spelling:
    """Incremental detokenization, because a character may need several tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._told = ""

    def of(self, token_id: int | None) -> str:
        """Return the text that a token adds; None flushes the rest."""
        self._token_ids += [] if token_id is None else [token_id]
        text = str(self._tokenizer.decode(self._token_ids))
        if text.endswith("\N{REPLACEMENT CHARACTER}") and token_id is not None:
            return ""
        new, self._told = text[len(self._told) :], text
        if new.endswith("\n"):  # decoding all of it at each token would take ever longer
            self._token_ids = self._token_ids[-_BEFORE:]
            self._told = str(self._tokenizer.decode(self._token_ids))
        return new


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
