"""Interface of constraints, and the tree of what they force."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
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


class Spells(Protocol):
    """Conversion of text to tokens and back."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...

    def cut(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that follows a mark, such as a quote."""
        ...


class CopiedValues(Protocol):
    """Values that a text may copy from its prompt."""

    def follow(self, token_ids: Sequence[int]) -> None:
        """Add emitted tokens."""
        ...

    def ahead(self, constraint: Any, paths: Sequence[Path]) -> Sequence[Path]:
        """Return likely continuations, given those that a constraint knows."""
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
        values: What the text may copy from its prompt where it is free; None if that is unknown.
        is_lost: Whether a token of the text was forbidden: nothing is known about what follows.
    """

    constraint: Constraint
    values: CopiedValues | None = None
    is_lost: bool = False

    @property
    def guides(self) -> bool:
        """Return whether something may be forbidden now."""
        return not (self.is_lost or self.constraint.ended)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Add emitted tokens."""
        self.is_lost = self.is_lost or not all(map(self.constraint.push, token_ids))
        if self.values is not None:
            self.values.follow(token_ids)

    def ahead(self) -> Sequence[Path]:
        """Return what must come next, and then the few things that may or that are likely."""
        paths = self.constraint.ahead()
        return paths if self.values is None else self.values.ahead(self.constraint, paths)


class MatcherConstraint:
    """Constraint of a library's matcher, and of the tokens after the end of its grammar.

    Args:
        matcher: Has `rollback(count)`.
        vocab_size: The number of tokens of a mask.

    Attributes:
        mask_s: CPU seconds of the slowest of the last masks, 0 if `max_s` is infinite. An engine
            computes one for each drafted token, with the same library.
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
        if math.isinf(self.max_s):
            return self._bits_of_matcher()
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

    @property
    def spells(self) -> Spells | None:
        """Return the spelling of the grammar's vocabulary, None if the library hides it."""
        return None

    def forced_token(self) -> int | None:
        """Return the only token that a mask would allow, if that is known without one."""
        return None

    def allows(self, token: int) -> bool:
        """Return whether a mask would allow a token, in most cases without the mask."""
        if is_allowed := self.push(token):
            self.pop(1)
        return is_allowed

    def text_after(self, path: Path) -> str | None:
        """Return the text that must follow a path, None if that is long or the path forbidden."""
        num_pushed = 0
        for token in path:
            if not self.push(token):
                break
            num_pushed += 1
        is_whole = num_pushed == len(path) and not self.ended
        text = self._forced_text() if is_whole else None
        self.pop(num_pushed)
        return text

    def _forced_text(self) -> str | None:
        raise NotImplementedError

    def push(self, token: int) -> bool:
        raise NotImplementedError

    def mask(self) -> NDArray[np.bool_]:
        if self.ended:
            return np.ones(self._vocab_size, dtype=bool)
        words = np.frombuffer(self.bits(), np.uint8)
        return np.unpackbits(words, count=self._vocab_size, bitorder="little").astype(bool)


def few_of(bits: bytes) -> list[int] | None:
    """Return the tokens of a bit mask; None if there are more than a few."""
    # Without numpy, whose code a forward pass leaves in no cache.
    used = bits.translate(None, b"\0")
    if len(used) > MAX_BRANCHES:
        return None
    found, place = list[int](), -1
    for byte in used:
        # The bytes up to the next one that is used are zeros.
        place = bits.find(byte, place + 1)
        found += [8 * place + bit for bit in range(8) if byte >> bit & 1]
    return None if len(found) > MAX_BRANCHES else found


def some_of(bits: bytes) -> list[int]:
    """Return three tokens of a bit mask that are far apart; none if it has few."""
    found = [_USED.search(bits, place * len(bits) // 4) for place in (1, 2, 3)]
    return [8 * of.start() + of[0][0].bit_length() - 1 for of in found if of] if all(found) else []
