"""Which levels earn their time: options meet in pairs, and that of more tokens a second stays."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Option = TypeVar("Option")

TRIAL = 4
"""Target forwards for which an option is used in a row; after a change the first is not counted,
as caches catch up in it."""

# Counted forwards of each of a pair: half as many where one gives twice as much as the other, and
# so on, down to the least.
_MEETING = 12
_SHORTEST = 3
# Target forwards of the best alone between two meetings, once all have met.
_BETWEEN = 256


@dataclass
class _Record:
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Choice(Generic[Option]):
    """Finds the option of the most tokens a second by measuring them in use.

    How many tokens a step gives depends on the text far more than on the option, so two of them
    take turns in the same text: the best so far and one other. The better of them stays, and meets
    the next that could be better at all. When all have met, the best is used alone for a while
    between meetings. What requests measure is shared by them. Safe to share by threads.

    Args:
        options: What there is to choose from, first what is used first.
    """

    def __init__(self, options: Sequence[Option]) -> None:
        self._best, *self._others = options
        self._num_unmet = len(self._others)
        self._alone = 0
        self._lock = Lock()
        self._records = (_Record(), _Record())

    @property
    def best(self) -> Option:
        """The best option so far."""
        return self._best

    def next(self) -> Option:
        """The option for a trial."""
        with self._lock:
            if self._alone > 0 or not self._others:
                self._alone -= TRIAL
                return self._best
            best, other = self._records
            return self._best if best.steps <= other.steps else self._others[0]

    def record(
        self,
        option: Option,
        tokens: int,
        seconds: float,
        most: Callable[[Option], float] = lambda _: inf,
    ) -> None:
        """Takes in what a step with an option gave.

        Args:
            option: The option.
            tokens: What the step gave.
            seconds: What it took.
            most: The most tokens a second that an option can give.
        """
        with self._lock:
            if self._alone > 0 or not self._others or option not in (self._best, self._others[0]):
                return
            record = self._records[option != self._best]
            record.steps += 1
            record.tokens += tokens
            record.seconds += seconds
            if self._is_decided():
                self._decide(most)

    def _is_decided(self) -> bool:
        steps = min(record.steps for record in self._records)
        worse, better = sorted(record.rate for record in self._records)
        return steps >= _SHORTEST and steps * better >= _MEETING * worse

    def _decide(self, most: Callable[[Option], float]) -> None:
        best, other = self._records
        met = self._others.pop(0)
        if other.rate > best.rate:
            self._best, met = met, self._best
        self._others.append(met)
        num_met, rate = 1, max(best.rate, other.rate)
        while num_met < len(self._others) and most(self._others[0]) <= rate:
            self._others.append(self._others.pop(0))
            num_met += 1
        self._num_unmet = max(self._num_unmet - num_met, 0)
        self._alone = 0 if self._num_unmet else _BETWEEN
        self._records = (_Record(), _Record())


class Chooser(Generic[Option]):
    """The choice of one request, step by step.

    Args:
        choice: What all requests know.
    """

    def __init__(self, choice: Choice[Option]) -> None:
        self._choice = choice
        self._option = choice.best
        self._left = 0
        self._is_new = True

    def next(self) -> Option:
        """The option of the next step."""
        if self._left == 0:
            option = self._choice.next()
            self._is_new = self._is_new or option != self._option
            self._option, self._left = option, TRIAL
        self._left -= 1
        return self._option

    def record(
        self, tokens: int, seconds: float, most: Callable[[Option], float] = lambda _: inf
    ) -> None:
        """Takes in what the last step gave; `most` is that of `Choice.record`."""
        if not self._is_new:
            self._choice.record(self._option, tokens, seconds, most)
        self._is_new = False
