"""Text without end, made of a corpus by its own 3-grams: what fills large datastores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index.tokens import Facts, TokenCorpus

ORDER = 3
"""A token follows the last `ORDER` tokens somewhere in the corpus, taken as a circle."""
JUMP = 0.25
"""The share of tokens whose place is drawn anew from all places with the same `ORDER` tokens before
them; the others follow the place of the token before. So of n tokens in a row, a share of
`(1 - JUMP) ** (n - ORDER - 1)` is copied from one place, and the others are text that the corpus
may not hold."""
CHAINS = 1 << 16
LENGTH = 512
"""Tokens of a document."""


class MadeText:
    """Documents of `LENGTH` tokens, drawn from the 3-grams of a corpus; equal seeds, equal text.

    Args:
        tokens: The corpus, shape `(n,)`, ids below 2**21.
        seed: Of the random numbers.
    """

    def __init__(self, tokens: np.ndarray, seed: int = 0) -> None:
        self.tokens, self.seed = tokens, seed
        ends = tokens.astype(np.uint64)
        keys = ends.copy()
        for back in range(1, ORDER):
            keys |= np.roll(ends, back) << np.uint64(21 * back)
        places = np.argsort(keys, kind="stable")
        is_first = np.empty(len(keys), dtype=bool)
        is_first[0] = True
        np.not_equal(keys[places[1:]], keys[places[:-1]], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        sizes = np.diff(firsts, append=len(keys))
        group = np.empty(len(keys), dtype=np.int32)
        group[places] = np.repeat(np.arange(len(firsts), dtype=np.int32), sizes)
        self._places, self._group = places.astype(np.int32), group
        self._firsts, self._sizes = firsts.astype(np.int32), sizes.astype(np.int32)

    def batch(self, number: int, chains: int) -> np.ndarray:
        """The documents of one batch, shape `(chains, LENGTH)`."""
        random = np.random.default_rng([self.seed, number])
        place = random.integers(len(self.tokens), size=chains)
        out = np.empty((LENGTH, chains), dtype=self.tokens.dtype)
        for step in range(LENGTH):
            out[step] = self.tokens[place]
            jumps = np.flatnonzero(random.random(chains) < JUMP)
            groups = self._group[place[jumps]]
            drawn = (random.random(len(jumps)) * self._sizes[groups]).astype(np.int64)
            place[jumps] = self._places[self._firsts[groups] + drawn]
            place = (place + 1) % len(self.tokens)
        return np.ascontiguousarray(out.T)


def write(folder: Path, source: TokenCorpus, num_tokens: int) -> TokenCorpus:
    """Made text of `num_tokens` tokens, or a few less, in `folder`, unless it is there."""
    if (folder / "facts.json").exists():
        return TokenCorpus.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = MadeText(np.array(source.tokens))
    num_documents = max(1, num_tokens // (LENGTH + 1))
    tokens = np.lib.format.open_memmap(
        folder / "tokens.npy", "w+", source.tokens.dtype, (num_documents * LENGTH,)
    )
    for number, first in enumerate(range(0, num_documents, CHAINS)):
        count = min(CHAINS, num_documents - first)
        rows = text.batch(number, count)
        tokens[first * LENGTH : (first + count) * LENGTH] = rows.ravel()
    tokens.flush()
    lengths = np.full(num_documents, LENGTH, dtype=np.int64)
    facts = source.facts
    made = Facts(f"made of {facts.name}", facts.tokenizer, facts.vocab_size, facts.separator)
    return TokenCorpus.finish(folder, made, lengths)
