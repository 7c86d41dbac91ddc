"""Copies of states between the caller's cache and the request's."""

from typing import Any

import torch
from torch.nn.functional import pad

from specds.verify.chain import ChainRunner
from specds.verify.generic import Runner
from specds.verify.native import NativeRunner
from specds.verify.states import MarkedCache


def load(past: Any, runner: Runner) -> None:
    """Give the first row of a new runner the states of the only row of `past`, mostly a copy."""
    length = past.get_seq_length()
    if isinstance(runner, NativeRunner):
        runner.load(past)
        return
    if isinstance(runner, ChainRunner):
        runner.mark_at = getattr(past, "mark_at", 0)
        if length > 0 or not isinstance(past, MarkedCache):
            runner.load(past, length)
        return
    if length == 0:
        return
    cache = runner.cache
    layers: list[Any] = past.layers
    cache.reserve(length)
    cache.place(torch.arange(length, device=layers[0].keys.device), 0)
    for index, layer in enumerate(layers):
        # A sliding window has dropped the first states, which no later token sees.
        lost = (0, 0, length - layer.keys.shape[2], 0)
        cache.update(pad(layer.keys, lost), pad(layer.values, lost), index)
    cache.settle()
    cache.lengths[0] = length


def extend(past: Any, runner: Runner) -> Any:
    """Append to `past` the states that only the runner has, as the baseline does."""
    if isinstance(runner, NativeRunner):
        return runner.extend()
    if isinstance(runner, ChainRunner):
        vars(past).update(vars(runner.committed()))
        if isinstance(past, MarkedCache) and runner.mark is not None:
            past.mark = runner.mark
        return past
    start = past.get_seq_length()
    layers: list[Any] = runner.cache.committed().layers
    for index, layer in enumerate(layers):
        past.update(layer.keys[:, :, start:], layer.values[:, :, start:], index)
    return past
