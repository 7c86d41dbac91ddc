"""What does a target step cost, by the number of nodes that it verifies?

It is measured on the running model before its first draft, and every step refines it.
"""

from __future__ import annotations

import math
from bisect import bisect
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from specds._core import TokenTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transformers import PreTrainedModel

    from specds.verify.generic import Runner

MOST_NODES = 63
"""The most nodes whose cost is measured, and so the most that an automatic budget verifies.

With the last token they fill tiles of 64, as do the other numbers that are recorded on a GPU.
"""

_SIZES = (0, 1, 2, 4, 8, 16, 32, MOST_NODES)
# Where time runs out, these have been measured first: a line through the most telling ones.
_ORDER = (0, MOST_NODES, 8, 1, 32, 4, 16, 2)
_MEASURING_S = 1.0
_ROUNDS = 5
# Contexts up to this long cost the same; beyond it each doubling is measured by itself.
_SHORT_CONTEXT = 1024

# How far one step moves the whole curve, and beyond that the sizes from its own on. A machine that
# gets slower does so for all sizes, and what one size costs more than thought, larger ones do too:
# so sizes that no step visits stay right.
_SHARED_RATE = 0.05
_LOCAL_RATE = 0.05
# A step that was interrupted counts as this much slower than expected, whatever it took.
_MOST_SURPRISE = 0.25


class CostModel:
    """Seconds of one target step as a function of the nodes that it verifies, 0 to `MOST_NODES`.

    Piecewise linear between powers of two, and never less for more nodes: where more of them were
    faster, fewer could be verified so. Where passes are of few sizes it is a staircase. Shared by
    all requests on a model; of two steps recorded at once one is lost, which does no harm.

    Args:
        seconds: What was measured, by number of nodes: at least that of 0 and of `MOST_NODES`.
        steps: The sizes of passes, 0 and `MOST_NODES` among them; empty where they have any.
    """

    def __init__(self, seconds: Mapping[int, float], steps: Sequence[int] = ()) -> None:
        known = sorted(seconds)
        self._sizes, self._is_stairs = tuple(steps or _SIZES), bool(steps)
        at_sizes = np.interp(self._sizes, known, [taken for _, taken in sorted(seconds.items())])
        self._taken: list[float] = at_sizes.tolist()
        self._places = [self._place(number) for number in range(MOST_NODES + 1)]
        self._set_least()

    def curve(self) -> dict[int, float]:
        """Seconds by number of nodes, at the numbers between which it is straight or flat."""
        return {size: self.seconds(size) for size in self._sizes}

    def seconds(self, num_nodes: int) -> float:
        """Seconds of a step that verifies `num_nodes` nodes of each row."""
        return _between(self._least, *self._place(num_nodes))

    def _place(self, num_nodes: int) -> tuple[int, float]:
        """After which of the sizes a number of nodes lies, and how far it is to the next."""
        index = bisect(self._sizes, num_nodes, 1, len(self._sizes) - 1) - 1
        size, next_size = self._sizes[index : index + 2]
        share = min((num_nodes - size) / (next_size - size), 1.0)
        return index, math.ceil(share) if self._is_stairs else share

    @property
    def least_worth(self) -> float:
        """What a node beyond the first size costs at least on average, in plain steps."""
        # A first node may cost nothing, as passes of a single token have kernels of their own: that
        # says nothing of the others.
        (_, plain), (first, taken_by_first), *others = self.curve().items()
        return min((taken - taken_by_first) / (size - first) for size, taken in others) / plain

    def record(self, num_nodes: int, seconds: float) -> None:
        """Learns from a step that verified `num_nodes` nodes and took `seconds`."""
        if not seconds > 0:  # a clock that stood still says nothing
            return
        index, share = self._place(num_nodes)
        # Against what steps of this size took, not against the estimate for them: the difference
        # would be found again in each of them, and be learned by all sizes above.
        expected = _between(self._taken, index, share)
        surprise = min(max(math.log(seconds / expected), -_MOST_SURPRISE), _MOST_SURPRISE)
        # In Python, as numpy takes 80 us for this where it has just not been used.
        for place, taken in enumerate(self._taken):
            is_from = min(max(place + 1 - index - share, 0.0), 1.0)
            self._taken[place] = taken * math.exp(surprise * (_SHARED_RATE + _LOCAL_RATE * is_from))
        self._set_least()

    def _set_least(self) -> None:
        # Here, as this is done while a device works.
        self._least = [*accumulate(reversed(self._taken), min)][::-1]
        plain = self._least[0]
        self.relative = [_between(self._least, *place) / plain for place in self._places]
        """What steps of 0 to `MOST_NODES` nodes cost, in plain steps: the first is 1."""


def _between(values: list[float], index: int, share: float) -> float:
    """The value on the line from `values[index]` to the next one, `share` of the way."""
    return values[index] + share * (values[index + 1] - values[index])


class StepCosts:
    """The cost models of a runner, by its rows and their length; requests on a model share them.

    Args:
        model: The target model.
        runner: Verifies on it; it has a prompt when a cost is asked for.
    """

    def __init__(self, model: PreTrainedModel, runner: Runner) -> None:
        self._runner = runner
        self._most_nodes = min(MOST_NODES, model.config.get_text_config(decoder=True).vocab_size)
        # What may change between two requests on the same model.
        self._setting = type(runner), str(model.device), model.dtype, torch.get_num_threads()
        self._known = _models.setdefault(model, {})

    def now(self) -> CostModel:
        """The costs at the present number and length of rows, which are measured at first."""
        lengths = self._runner.cache.lengths
        length = max(_power_of_two(max(lengths)), _SHORT_CONTEXT)
        key = (*self._setting, _power_of_two(len(lengths)), length)
        known = self._known.get(key)
        if known is None:
            steps = self._runner.node_steps
            seconds = measure(self._pass, self._most_nodes, steps or _ORDER)
            known = self._known[key] = CostModel(seconds, steps)
        return known

    def _pass(self, num_nodes: int) -> None:
        """One pass over children of the last tokens; it commits nothing, so it leaves no trace."""
        tree = TokenTree(range(num_nodes), [-1] * num_nodes) if num_nodes else None
        num_rows = len(self._runner.cache.lengths)
        logits = self._runner.verify_rows([0] * num_rows, [tree] * num_rows)
        logits[0][0, 0].item()  # waits for the device


_models: WeakKeyDictionary[torch.nn.Module, dict[tuple[Any, ...], CostModel]] = WeakKeyDictionary()


def _power_of_two(number: int) -> int:
    """The smallest that is not less than `number`."""
    return 1 << (max(number, 1) - 1).bit_length()


def measure(
    verify: Callable[[int], None],
    most_nodes: int = MOST_NODES,
    order: Sequence[int] = _ORDER,
    clock: Callable[[], float] = perf_counter,
) -> dict[int, float]:
    """Measures passes of several sizes in turn, so that a drift of the machine's speed hits all.

    Takes about a second, or three passes where these take longer; each size gets as much of it.

    Args:
        verify: Verifies this number of nodes, and returns when that is done.
        most_nodes: What no pass may be larger than.
        order: The sizes, those first that are to be measured where time is short.
        clock: Seconds since some moment.

    Returns:
        The least seconds, by number of nodes; 0 and `MOST_NODES` are among these. Other work on the
        machine can only add to them, and what is taken for too fast is tried, and so put right.
    """

    def timed(size: int) -> float:
        start = clock()
        verify(size)
        return clock() - start

    samples: dict[int, list[float]] = {}
    left = [size for size in order if size <= most_nodes]
    deadline = clock() + _MEASURING_S
    while left and (clock() <= deadline or len(samples) < min(3, most_nodes)):
        size = min(left, key=lambda size: sum(samples.get(size, ())))
        try:
            elapsed = timed(size)
        except torch.OutOfMemoryError:
            left = [smaller for smaller in left if smaller < size]
            most_nodes = size - 1
            continue
        if size not in samples and elapsed < _MEASURING_S:
            # The first pass of a size chooses kernels and allocates, or is recorded.
            first, elapsed = elapsed, timed(size)
            deadline += max(first - elapsed, 0.0)
        samples.setdefault(size, []).append(elapsed)
        if len(samples[size]) == _ROUNDS:
            left.remove(size)
    seconds = {size: min(taken) for size, taken in samples.items()}
    seconds.setdefault(MOST_NODES, seconds[max(seconds)])
    return seconds
