"""Which levels earn their time: the choice that gave the most tokens a second on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Option = TypeVar("Option")

TRIAL = 4
"""Target forwards of a trial; the first is not counted, as caches catch up in it."""

_BETWEEN_TRIALS = 64
# What was measured counts half after as many steps, as contexts grow and machines change.
_HALF_LIFE = 256


@dataclass
class _Record:
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else float("inf")


class Choice(Generic[Option]):
    """Chooses among options by the tokens a second that each has given.

    Each is tried in turn; then the best is used, and now and then the one is tried again of which
    least is known. What requests measure is shared by them. Safe to share by threads.

    Args:
        options: What there is to choose from.
    """

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = list(options)
        self._records = {option: _Record() for option in self._options}
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
        """The option of the highest rate; one that was not tried counts as better than any."""
        with self._lock:
            return max(self._options, key=lambda option: self._records[option].rate)

    def least_known(self) -> Option:
        """The option that was measured for the shortest time."""
        with self._lock:
            return min(self._options, key=lambda option: self._records[option].seconds)

    def record(self, option: Option, tokens: int, seconds: float) -> None:
        """Takes in what a step with an option gave."""
        with self._lock:
            for record in self._records.values():
                record.tokens *= 0.5 ** (1 / _HALF_LIFE)
                record.seconds *= 0.5 ** (1 / _HALF_LIFE)
            record = self._records[option]
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
        self._num_steps = 0
        self._left = 0
        self._until_trial = _BETWEEN_TRIALS

    def next(self) -> Option:
        """The option of the next step."""
        if self._left == 0:
            self._until_trial -= TRIAL
            option = self._choice.best()
            if self._until_trial <= 0:
                option, self._until_trial = self._choice.least_known(), _BETWEEN_TRIALS
            if option != self._option:
                self._option, self._num_steps = option, 0
            self._left = TRIAL
        self._left -= 1
        self._num_steps += 1
        return self._option

    def record(self, tokens: int, seconds: float) -> None:
        """Takes in what the last step gave."""
        if self._num_steps > 1:
            self._choice.record(self._option, tokens, seconds)
