"""Interface of constraints, and the tree of what they force."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Path = Sequence[int]
"""Tokens that follow each other."""

FORCED_PROB = 0.97
"""The probability of a forced token: a model may split a forced string in another way."""

MAX_BRANCHES = 24
"""The most continuations that are drafted where several are allowed."""

MAX_FORCED = 60
"""The most tokens of a forced string that are drafted."""

_MAX_SUGGESTED = 1024
"""The most nodes that a session takes."""


class Constraint(Protocol):
    """Grammar of one text, of which some tokens were pushed."""

    @property
    def ended(self) -> bool:
        """Return whether nothing is forbidden from here on."""
        ...

    def ahead(self) -> Sequence[Path]:
        """Return what must come next and then the few things that may, one path for each."""
        ...

    def push(self, token: int) -> bool:
        """Add a token. Return False, and add nothing, if it is forbidden."""
        ...

    def pop(self, count: int) -> None:
        """Remove the last tokens."""
        ...


class MaskingConstraint(Constraint, Protocol):
    """Constraint that can also be enforced."""

    def mask(self) -> NDArray[np.bool_]:
        """Return True for each allowed token, bool, shape `(vocab_size,)`."""
        ...


@dataclass
class Guide:
    """The constraint of a text while the text follows it.

    Attributes:
        constraint: What is allowed after the text so far.
        is_lost: Whether a token of the text was forbidden: nothing is known about what follows.
    """

    constraint: Constraint
    is_lost: bool = False

    @property
    def guides(self) -> bool:
        """Return whether something may be forbidden now."""
        return not (self.is_lost or self.constraint.ended)

    def follow(self, token_ids: Iterable[int]) -> None:
        """Add emitted tokens."""
        self.is_lost = self.is_lost or not all(map(self.constraint.push, token_ids))


class MatcherConstraint:
    """Constraint of a library's matcher, and of the tokens after the end of its grammar.

    Args:
        matcher: Has `rollback(count)`.
        vocab_size: The number of tokens of a mask.
    """

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        # The number of tokens from the one that ended the text; the matcher has none of them.
        self._num_beyond = 0

    @property
    def ended(self) -> bool:
        return self._num_beyond > 0

    def words(self) -> NDArray[np.uint32]:
        """Return the bit mask of the allowed tokens."""
        raise NotImplementedError

    def pop(self, count: int) -> None:
        beyond = min(count, self._num_beyond)
        self._num_beyond -= beyond
        if count > beyond:
            self._matcher.rollback(count - beyond)

    def mask(self) -> NDArray[np.bool_]:
        if self.ended:
            return np.ones(self._vocab_size, dtype=bool)
        return bool_mask(self.words(), self._vocab_size)


def suggestion(
    paths: Sequence[Path], known_tokens: int = 1 << 32
) -> tuple[list[int], list[int], list[float]]:
    """Return the arguments of `Session.suggest` for paths that are equally likely.

    Args:
        known_tokens: A path ends before a token that is not below this.
    """
    nodes: dict[tuple[int, int], int] = {}
    counts = list[int]()
    for path in paths:
        node = -1
        for token in path[: _MAX_SUGGESTED // len(paths)]:
            if token >= known_tokens:
                break
            node = nodes.setdefault((node, token), len(counts))
            if node == len(counts):
                counts.append(0)
            counts[node] += 1
    parents = [parent for parent, _ in nodes]
    of_parent = (len(paths) if parent < 0 else counts[parent] for parent in parents)
    probs = [FORCED_PROB * count / total for count, total in zip(counts, of_parent, strict=True)]
    return [token for _, token in nodes], parents, probs


def few_of(words: NDArray[np.uint32]) -> list[int] | None:
    """Return the tokens of a bit mask, uint32 `(n,)`; None if there are more than a few."""
    used = np.flatnonzero(words)
    if len(used) > MAX_BRANCHES:
        return None
    bits = np.unpackbits(words[used].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    at, bit = np.nonzero(bits)
    return None if len(at) > MAX_BRANCHES else (32 * used[at] + bit).tolist()


def bool_mask(words: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """Return the bits of a mask, bool `(vocab_size,)`."""
    return np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little").astype(bool)
