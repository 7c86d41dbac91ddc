"""The cost of a target step by its number of nodes, measured before the first draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from specds._core import TokenTree
from specds.accept.on_device import PassRequest
from specds.kernels.operations import power_of_two
from specds.models.tokenization import model_vocab_size
from specds.verify.generic import Runner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specds.verify.packed import PackedRunner

MOST_NODES = 63
"""The most nodes that an automatic budget verifies: with the last token they fill a tile of 64."""

# In the order in which they are measured: time may run out before the last ones. The first node can
# cost more than all others, and small passes of a slow model are not slow.
_SIZES = (0, 1, 8, 3, MOST_NODES, 32, 16, 2, 4)
_LEAST_PASSES = 4
_MEASURING_S = 1.0
_ROUNDS = 5
# Shorter contexts cost as much as this; beyond it each doubling is measured.
_SHORT_CONTEXT = 1024


class CostModel:
    """Seconds of one target step as a function of the nodes that it verifies, 0 to `MOST_NODES`.

    Linear between measured sizes, beyond the last one as steep as before it, or a staircase where
    passes have few sizes. More nodes never cost less: a larger pass can verify fewer nodes too.

    Args:
        measured: Seconds by number of nodes, with that of 0.
        steps: The sizes of passes, 0 and `MOST_NODES` among them; empty for any.

    Attributes:
        seconds: By number of nodes of each row.
    """

    def __init__(self, measured: Mapping[int, float], steps: Sequence[int] = ()) -> None:
        numbers = np.arange(MOST_NODES + 1)
        passes = np.array(steps)[np.searchsorted(steps, numbers)] if steps else numbers
        known = sorted(measured)
        least = [min(measured[size] for size in known[place:]) for place in range(len(known))]
        if len(known) > 1 and known[-1] < MOST_NODES:
            slope = (least[-1] - least[-2]) / (known[-1] - known[-2])
            least.append(least[-1] + slope * (MOST_NODES - known[-1]))
            known.append(MOST_NODES)
        self.seconds: list[float] = np.interp(passes, known, least).tolist()


_models: WeakKeyDictionary[torch.nn.Module, dict[tuple[Any, ...], CostModel]] = WeakKeyDictionary()


def step_costs(
    model: PreTrainedModel, runner: Runner, request: PassRequest | None = None
) -> CostModel:
    """The costs at the present number and length of a runner's rows, measured once for a model.

    With a request they are those of acceptance too, of its predictions and its kind of sampling.
    """
    num_rows, longest = len(runner.cache.lengths), max(runner.cache.lengths)
    asked = None if request is None else request.kind
    key = *runner.setting, asked, power_of_two(num_rows), max(power_of_two(longest), _SHORT_CONTEXT)
    known = _models.setdefault(model, {})
    if key not in known:

        def verify(num_nodes: int) -> None:
            # Nothing is committed, so it leaves no trace.
            last, trees = [0] * num_rows, [TokenTree(range(num_nodes), [-1] * num_nodes)] * num_rows
            if request is None:
                runner.verify_rows(last, trees)[0][0, 0].item()  # waits for the device
            else:
                cast("PackedRunner", runner).launch(last, trees, request)()

        most = min(MOST_NODES, model_vocab_size(model))
        seconds = measure(verify, most, runner.node_steps or _SIZES)
        known[key] = CostModel(seconds, runner.node_steps)
    return known[key]


def measure(
    verify: Callable[[int], None],
    most_nodes: int = MOST_NODES,
    order: Sequence[int] = _SIZES,
    clock: Callable[[], float] = perf_counter,
) -> dict[int, float]:
    """Measures passes of several sizes in turn, so that a drift of the machine's speed hits all.

    Takes about a second, or eight passes if that is longer, four where each takes a second, and
    divides it evenly among the sizes; if time is short, the first ones of `order` are measured.
    `verify` takes a number of nodes, at most `most_nodes`, and returns when they are verified.

    Returns:
        The least seconds by number of nodes, with 0: other work on the machine can only add.
    """

    def timed(size: int) -> float:
        start = clock()
        verify(size)
        return clock() - start

    samples: dict[int, list[float]] = {}
    left = [size for size in order if size <= most_nodes]
    deadline = clock() + _MEASURING_S
    while left and (clock() <= deadline or len(samples) < min(_LEAST_PASSES, most_nodes)):
        size = min(left, key=lambda size: sum(samples.get(size, ())))
        try:
            elapsed = timed(size)
        except torch.OutOfMemoryError:
            left = [smaller for smaller in left if smaller < size]
            most_nodes = size - 1
            continue
        if size not in samples and elapsed < _MEASURING_S:
            # The first pass of a size chooses kernels, allocates, and may be recorded.
            first, elapsed = elapsed, timed(size)
            deadline += max(first - elapsed, 0.0)
        samples.setdefault(size, []).append(elapsed)
        if len(samples[size]) == _ROUNDS:
            left.remove(size)
    return {size: min(taken) for size, taken in samples.items()}
