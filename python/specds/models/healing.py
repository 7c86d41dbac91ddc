"""Token healing: a text that ends within a word is continued by tokens that begin as the word does.

The tokens of an unfinished word, such as `Arg` and `um`, are rarely those of the whole word, such
as `Argument`, so what follows them in other texts is not found.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specds._core import Datastore
from specds.models.render import text_after
from specds.models.tokenization import Tokenizer

_MOST_TOKENS = 4
"""The most tokens of an unfinished word; each one is a search."""
_LAST = "\U0010ffff"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Spellings:
    """The tokens of a vocabulary by their spelling, without special tokens and single bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        added: set[int] = set(tokenizer.all_special_ids)
        added |= {*(backend.get_added_tokens_decoder() if backend is not None else ())}
        vocabulary = tokenizer.get_vocab().items()
        found = [(text, token) for text, token in vocabulary if token not in added]
        self._sorted = sorted((text, token) for text, token in found if not _BYTE.fullmatch(text))
        self.by_token = {token: text for text, token in self._sorted}

    def of(self, token_ids: Sequence[int]) -> str | None:
        """Return the spelling of tokens; None if one of them is special."""
        spelled = [self.by_token.get(int(token)) for token in token_ids]
        return None if None in spelled else "".join(map(str, spelled))

    def beginning_with(self, start: str) -> list[int]:
        """Return the tokens whose spelling begins so."""
        first = bisect_left(self._sorted, (start, -1))
        end = bisect_left(self._sorted, (start + _LAST, -1))
        return [token for _, token in self._sorted[first:end]]


@dataclass(frozen=True)
class Completions:
    """The tokens that continue an unfinished word in a corpus, the most frequent first.

    Attributes:
        context: The tokens before the unfinished word.
        typed: The text of the unfinished word.
        length: The number of tokens at the end of the context that occur before the completions.
        token_ids: int64 `(number,)`.
        counts: int64 `(number,)`.
    """

    context: list[int]
    typed: str
    length: int
    token_ids: NDArray[np.int64]
    counts: NDArray[np.int64]


def completions(
    datastore: Datastore,
    tokenizer: Tokenizer,
    spellings: Spellings,
    context: Sequence[int],
    *,
    max_match: int = 16,
) -> Completions | None:
    """Return the completions of the end of a text if they match more of it than its own tokens.

    The last tokens are replaced by all tokens that begin with their text.
    """
    ids = [int(token) for token in context]
    # What matches earlier tokens of the text matches more of it.
    start, best = len(ids) - datastore.lookup(ids, max_match=max_match).length, None
    for number in range(1, min(_MOST_TOKENS, len(ids)) + 1):
        before, last = ids[:-number], ids[-number:]
        spelled = spellings.of(last)
        longer = [] if spelled is None else spellings.beginning_with(spelled)
        longer = [token for token in longer if token < datastore.vocab_size]
        if not {*longer} - {*last}:
            continue
        length = min(max_match - 1, len(before))
        while len(before) - length < start:
            length, tokens, counts = _after(datastore, before, length, longer)
            if len(tokens) and len(before) - length < start:
                order = np.argsort(-counts, kind="stable")
                typed, start = text_after(tokenizer, before, last), len(before) - length
                best = Completions(before, typed, length, tokens[order], counts[order])
            length -= 1
            if length < 0:
                break
    return best


def _after(
    datastore: Datastore, before: list[int], length: int, some: list[int]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return which tokens follow the longest match of at most `length` tokens, with counts."""
    match = datastore.lookup(before, max_match=length) if length else None
    if match is None or match.length == 0:
        counts = datastore.count_batch([[token] for token in some])
        return 0, np.array(some)[counts > 0], counts[counts > 0]
    tokens, counts = datastore.continuations(match)
    kept = np.isin(tokens, some)
    return match.length, tokens[kept], counts[kept]


def num_unfinished(spellings: Spellings, token_ids: Sequence[int]) -> int:
    """Return how many tokens at the end of a text may be one longer token."""
    for number in range(min(_MOST_TOKENS, len(token_ids)), 0, -1):
        last = [int(token) for token in token_ids[-number:]]
        spelled = spellings.of(last)
        if spelled is not None and {*spellings.beginning_with(spelled)} - {*last}:
            return number
    return 0
