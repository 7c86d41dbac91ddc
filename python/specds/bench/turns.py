"""Calls that take turns, so that a drift of the machine affects all of them."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Generic, Literal, TypeVar

Label = TypeVar("Label", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class TimedCall(Generic[Result]):
    """Result of a call, its wall-clock seconds, and the CPU seconds of the process."""

    result: Result
    seconds: float
    cpu_seconds: float


def in_turns(
    calls: Mapping[Label, Callable[[], Result]],
    turn: int,
    synchronize: Callable[[], None] = lambda: None,
) -> dict[Label, TimedCall[Result]]:
    """Do each call once, and return the results in the order of `calls`.

    Args:
        turn: Number of the turn; each begins with another call.
        synchronize: Waits for the device before and after a call, within its time.
    """
    order, found = [*calls], {}
    shift = turn % max(len(order), 1)
    for key in order[shift:] + order[:shift]:
        synchronize()
        start, cpu = perf_counter(), process_time()
        result = calls[key]()
        synchronize()
        found[key] = TimedCall(result, perf_counter() - start, process_time() - cpu)
    return {key: found[key] for key in calls}


def medians(
    calls: Mapping[Label, Callable[[], object]],
    num_turns: int,
    synchronize: Callable[[], None] = lambda: None,
    clock: Literal["seconds", "cpu_seconds"] = "seconds",
) -> dict[Label, float]:
    """Return the median time of each call in seconds, without a first turn that warms up."""
    turns = [in_turns(calls, turn, synchronize) for turn in range(num_turns + 1)]
    return {key: median(getattr(turn[key], clock) for turn in turns[1:]) for key in calls}
