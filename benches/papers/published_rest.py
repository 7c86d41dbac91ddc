"""Which draft tokens does REST's published program keep? Its choice, in numpy, from the same text.

After He et al. 2024, Algorithms 1 and 2, and what the authors' program does beyond them: of the
occurrences of the longest suffix (16 to 2 tokens) it takes the first 5,000 in lexicographic order,
counts every prefix of their next 10 tokens, and keeps the 64 most frequent prefixes. It then drops
the longest of these, until as many tokens as the others hold, summed path by path, are within the
budget: a prefix is counted again in each path that goes on from it, so few nodes are left.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from specds.drafters import Session, TokenTree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specds import Datastore

MAX_MATCH, MIN_MATCH = 16, 2
MAX_OCCURRENCES = 5000
CONTINUATION = 10

PAST_END = -1

NodePath = tuple[int, ...]
"""The tokens from the context to a node, and the node's own."""


class Section:
    """A section file of a datastore as an array of integers of any width up to 56 bits."""

    def __init__(self, path: Path, element_bits: int, count: int) -> None:
        self.count = count
        self._bits = element_bits
        self._mask = np.uint64((1 << element_bits) - 1)
        # Overlapping words, one from each byte on: an element is within the word it begins in.
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        self._words = np.ndarray((len(raw) - 7,), dtype="<u8", buffer=raw, strides=(1,))

    @classmethod
    def of(cls, datastore: Path, name: str) -> Section:
        """Section `name` of the only shard of a datastore."""
        shards = json.loads((datastore / "manifest.json").read_text())["shards"]
        if len(shards) != 1:
            raise ValueError(f"{datastore} has {len(shards)} shards: this reads one alone")
        folder = datastore / f"shard-{shards[0]['id']}"
        facts = json.loads((folder / "shard.json").read_text())
        largest, count = max(facts["vocab_size"] - 1, facts["separator"]), facts["num_tokens"]
        token_bits, position_bits = 16 if largest < 1 << 16 else 24, (count - 1).bit_length()
        bits = token_bits if name == "tokens" else max(position_bits, 1)
        return cls(folder / f"{name}.bin", bits, count)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        first_bits = np.asarray(indices, dtype=np.int64) * self._bits
        words = self._words[first_bits >> 3]
        return (words >> (first_bits & 7).astype(np.uint64) & self._mask).astype(np.int64)


class SuffixArray:
    """The text and the suffix array of a datastore, read without its own code."""

    def __init__(self, datastore: Path) -> None:
        self.tokens = Section.of(datastore, "tokens")
        self.suffixes = Section.of(datastore, "suffixes")

    def text(self, positions: np.ndarray, length: int) -> np.ndarray:
        """The `length` tokens from each position on, `PAST_END` beyond the text."""
        where = np.asarray(positions)[..., None] + np.arange(length)
        inside = where < self.tokens.count
        return np.where(inside, self.tokens[np.where(inside, where, 0)], PAST_END)

    def first(self, pattern: np.ndarray) -> int:
        """The rank of the first suffix that is not before `pattern`."""
        wanted = tuple(int(token) for token in pattern)
        low, high = 0, self.suffixes.count
        while low < high:
            middle = (low + high) // 2
            if tuple(self.text(self.suffixes[middle], len(wanted)).tolist()) < wanted:
                low = middle + 1
            else:
                high = middle
        return low


def retrieve(array: SuffixArray, datastore: Datastore, context: np.ndarray) -> np.ndarray:
    """The continuations of Algorithm 1, in lexicographic order, one a row."""
    match = datastore.lookup(context[-MAX_MATCH:], max_match=MAX_MATCH, min_match=MIN_MATCH)
    if match.length == 0:
        return np.empty((0, CONTINUATION), dtype=np.int64)
    pattern = context[len(context) - match.length :]
    first = array.first(pattern)
    ranks = np.arange(first, first + min(match.count, MAX_OCCURRENCES))
    found = array.text(array.suffixes[ranks], match.length + CONTINUATION)
    if not (found[[0, -1], : match.length] == pattern).all():
        raise RuntimeError("the datastore's count is not that of its suffix array: verify it")
    return found[:, match.length :]


def count_prefixes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different prefixes of sorted rows: `(row that has it, its length, how many rows do)`."""
    differs = np.ones(rows.shape, dtype=np.bool_)
    differs[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    first_rows, lengths, counts = [], [], []
    for depth in range(rows.shape[1]):
        starts = np.flatnonzero(differs[:, depth])
        ends = np.append(starts[1:], len(rows))
        inside = rows[starts, depth] != PAST_END
        first_rows.append(starts[inside])
        lengths.append(np.full(inside.sum(), depth + 1))
        counts.append((ends - starts)[inside])
    return np.concatenate(first_rows), np.concatenate(lengths), np.concatenate(counts)


def select(rows: np.ndarray, choices: int, random: np.random.Generator) -> set[NodePath]:
    """The nodes that the published program drafts, each as the path to it.

    Among equally frequent prefixes, and equally long ones, the program takes them in the order of a
    hash table, other in each run: here in an order drawn from `random`.
    """
    if len(rows) == 0:
        return set()
    first_rows, lengths, counts = count_prefixes(rows)
    best = np.lexsort((random.random(len(counts)), -counts))[:choices]
    kept = [tuple(rows[first_rows[i], : lengths[i]].tolist()) for i in random.permutation(best)]
    kept.sort(key=_num_tokens, reverse=True)
    total = sum(map(_num_tokens, kept))
    while total > choices:
        total -= _num_tokens(kept.pop(0))
    return {path[:length] for path in kept for length in range(1, len(path) + 1)}


def _num_tokens(path: NodePath) -> int:
    """How many tokens the program takes a path to have: a token that comes again is not counted."""
    return len(set(path))


class PublishedDrafter:
    """Drafts what the published program does, as slowly as this file does."""

    def __init__(self, datastore: Datastore) -> None:
        self.vocab_size = datastore.vocab_size
        self._datastore = datastore
        self._array = SuffixArray(datastore.path)
        self._random = np.random.default_rng(0)

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> PublishedSession:
        return PublishedSession(self._datastore, self._array, self._random, prompt_ids)


class PublishedSession(Session):
    """One request."""

    def __init__(
        self,
        datastore: Datastore,
        array: SuffixArray,
        random: np.random.Generator,
        prompt_ids: Sequence[int] | np.ndarray,
    ) -> None:
        self._datastore = datastore
        self._array = array
        self._random = random
        self._context = np.asarray(prompt_ids)

    def draft(self, max_nodes: int, *_: Any) -> TokenTree:
        rows = retrieve(self._array, self._datastore, self._context)
        return tree_of(select(rows, max_nodes, self._random))

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        self._context = np.append(self._context, token_ids)


def tree_of(nodes: set[NodePath]) -> TokenTree:
    """The tree of nodes that are each named by the path to them."""
    paths = sorted(nodes, key=lambda path: (len(path), path))
    places = {path: place for place, path in enumerate(paths)}
    parents = [places.get(path[:-1], -1) for path in paths]
    return TokenTree([path[-1] for path in paths], parents)
