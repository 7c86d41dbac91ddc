"""Interface of constraints, and the tree of what they force."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Path = Sequence[int]
"""Tokens that follow each other."""

MAX_BRANCHES = 24
"""The most continuations that are drafted where several are allowed."""

MAX_FORCED = 60
"""The most tokens of a forced string that are drafted."""

_KEPT = 0.9
"""What is left of the time of the slowest mask after each later one."""

_USED = re.compile(rb"[^\0]")


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

    Attributes:
        mask_s: CPU seconds of the slowest of the last masks. An engine computes one for each
            drafted token, with the same library.
        max_s: CPU seconds of masks after which `ahead` ends.
    """

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self.mask_s, self.max_s, self._spent_s = 0.0, math.inf, 0.0
        # The number of tokens from the one that ended the text; the matcher has none of them.
        self._num_beyond = 0

    @property
    def ended(self) -> bool:
        return self._num_beyond > 0

    def bits(self) -> bytes:
        """Return the allowed tokens as a bit mask, the first token in the lowest bit."""
        begun = thread_time()  # CPU time, to which other programs add nothing
        found = self._bits_of_matcher()
        spent = thread_time() - begun
        self.mask_s = max(_KEPT * self.mask_s, spent)
        self._spent_s += spent
        return found

    def _bits_of_matcher(self) -> bytes:
        raise NotImplementedError

    def pop(self, count: int) -> None:
        beyond = min(count, self._num_beyond)
        self._num_beyond -= beyond
        if count > beyond:
            self._matcher.rollback(count - beyond)

    def mask(self) -> NDArray[np.bool_]:
        if self.ended:
            return np.ones(self._vocab_size, dtype=bool)
        words = np.frombuffer(self.bits(), np.uint8)
        return np.unpackbits(words, count=self._vocab_size, bitorder="little").astype(bool)


def few_of(bits: bytes) -> list[int] | None:
    """Return the tokens of a bit mask; None if there are more than a few."""
    # Without numpy, whose code a forward pass leaves in no cache.
    if len(bits) - bits.count(0) > MAX_BRANCHES:
        return None
    found = [
        8 * of.start() + bit
        for of in _USED.finditer(bits)
        for bit in range(8)
        if of[0][0] >> bit & 1
    ]
    return None if len(found) > MAX_BRANCHES else found


def some_of(bits: bytes) -> list[int]:
    """Return three tokens of a bit mask that are far apart; none if it has few."""
    found = [_USED.search(bits, place * len(bits) // 4) for place in (1, 2, 3)]
    return [8 * of.start() + of[0][0].bit_length() - 1 for of in found if of] if all(found) else []
