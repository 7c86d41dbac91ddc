"""Which levels earn their time: the choice that gave the most tokens a second on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, log, sqrt
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Option = TypeVar("Option")

TRIAL = 4
"""Target forwards that an option is used for in a row; where it is another one than before, the
first is not counted, as caches catch up in it."""

# What was measured counts half after as many steps, as contexts grow and machines change.
_HALF_LIFE = 256


@dataclass
class _Record:
    steps: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def upper(self, all_steps: float) -> float:
        """How good the option may be, for all that is known of it: UCB."""
        if self.seconds == 0:
            return inf
        return self.rate * (1 + sqrt(log(max(all_steps, e)) / self.steps))


class Choice(Generic[Option]):
    """Chooses among options by the tokens a second that each has given.

    The best is used of those that were tried, and one that was tried little, or long ago, as long
    as it may be better for all that is known. What requests measure is shared by them. Safe to
    share by threads.

    Args:
        options: What there is to choose from.
    """

    def __init__(self, options: Sequence[Option]) -> None:
        self._records = {option: _Record() for option in options}
        self._lock = Lock()

    @property
    def rates(self) -> dict[Option, float]:
        """Tokens a second by option, of those that were tried."""
        with self._lock:
            return {
                option: record.rate
                for option, record in self._records.items()
                if record.seconds > 0
            }

    def best(self) -> Option:
        """The option that may be best."""
        with self._lock:
            steps = sum(record.steps for record in self._records.values())
            return max(self._records, key=lambda option: self._records[option].upper(steps))

    def record(self, option: Option, tokens: int, seconds: float) -> None:
        """Takes in what a step with an option gave."""
        kept = 0.5 ** (1 / _HALF_LIFE)
        with self._lock:
            for record in self._records.values():
                record.steps *= kept
                record.tokens *= kept
                record.seconds *= kept
            record = self._records[option]
            record.steps += 1
            record.tokens += tokens
            record.seconds += seconds


class Chooser(Generic[Option]):
    """The choice of one request, step by step.

    Args:
        choice: What all requests know.
    """

    def __init__(self, choice: Choice[Option]) -> None:
        self._choice = choice
        self._option = choice.best()
        self._left = 0
        self._is_new = True

    def next(self) -> Option:
        """The option of the next step."""
        if self._left == 0:
            option = self._choice.best()
            self._is_new = self._is_new or option != self._option
            self._option, self._left = option, TRIAL
        self._left -= 1
        return self._option

    def record(self, tokens: int, seconds: float) -> None:
        """Takes in what the last step gave."""
        if not self._is_new:
            self._choice.record(self._option, tokens, seconds)
        self._is_new = False
