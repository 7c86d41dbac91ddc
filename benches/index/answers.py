"""Do all that count patterns agree? Compared before anything that they did is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from index.tokens import TokenCorpus


def random_patterns(corpus: TokenCorpus, number: int, max_length: int = 16) -> list[list[int]]:
    """Patterns within documents, of all lengths, and some whose last token is any token."""
    random = np.random.default_rng(0)
    tokens, lengths = corpus.tokens, np.asarray(corpus.lengths)
    ends = np.cumsum(lengths)
    patterns = []
    for index in range(number):
        start = int(random.integers(len(tokens)))
        room = int(ends[np.searchsorted(ends, start, side="right")]) - start
        pattern = tokens[start : start + min(room, 1 + index % max_length)].tolist()
        if index % 8 == 0:
            pattern[-1] = int(random.integers(corpus.facts.vocab_size))
        # No index of ours finds a separator: it ends a document.
        if corpus.facts.separator not in pattern:
            patterns.append(pattern)
    return patterns


def scan(corpus: TokenCorpus, patterns: list[list[int]]) -> list[int]:
    """How often each pattern occurs, by looking at every place."""
    text = np.fromfile(corpus.stream(), dtype=corpus.tokens.dtype)
    counts = []
    for pattern in patterns:
        places = np.flatnonzero(text[: len(text) - len(pattern) + 1] == pattern[0])
        for offset, token in enumerate(pattern[1:], start=1):
            places = places[text[places + offset] == token]
        counts.append(len(places))
    return counts


def differences(patterns: list[list[int]], counts: list[int], truth: list[int]) -> list[str]:
    """A line for each count that is not that of the scan."""
    return [
        f"{pattern}: {count} counted, {expected} there"
        for pattern, count, expected in zip(patterns, counts, truth, strict=True)
        if count != expected
    ]
