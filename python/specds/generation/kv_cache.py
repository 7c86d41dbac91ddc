"""Copies of states between the caller's cache and the request's."""

from typing import Any

from specds.verify.native import NativeRunner
from specds.verify.runner import Verifier


def load(past: Any, runner: Verifier) -> None:
    """Give the first row of a new runner the states of the only row of `past`, mostly a copy."""
    if isinstance(runner, NativeRunner):
        runner.load(past)
        return
    import torch
    from torch.nn.functional import pad

    from specds.verify.chain import ChainRunner
    from specds.verify.states import MarkedCache

    length = past.get_seq_length()
    if isinstance(runner, ChainRunner):
        runner.mark_at = getattr(past, "mark_at", 0)
        if length > 0 or not isinstance(past, MarkedCache):
            runner.load(past, length)
        return
    if length == 0:
        return
    cache: Any = runner.cache  # type: ignore[attr-defined]
    layers: list[Any] = past.layers
    cache.reserve(length)
    cache.place(torch.arange(length, device="cpu"), 0)
    for index, layer in enumerate(layers):
        if _is_convolution(layer):
            (states,) = layer.conv_states.values()
            cache.update_conv_state(pad(states, (length - states.shape[-1], 0)), index)
            continue
        # A sliding window has dropped the first states, which no later token sees.
        lost = (0, 0, length - layer.keys.shape[2], 0)
        cache.update(pad(layer.keys, lost), pad(layer.values, lost), index)
    cache.settle()
    cache.lengths[0] = length


def extend(past: Any, runner: Verifier) -> Any:
    """Append to `past` the states that only the runner has, as the baseline does."""
    if isinstance(runner, NativeRunner):
        return runner.extend()
    from specds.verify.chain import ChainRunner
    from specds.verify.states import MarkedCache

    start, whole = past.get_seq_length(), runner.committed()
    layers: list[Any] = whole.layers
    if not isinstance(runner, ChainRunner) and not any(map(_is_convolution, layers)):
        for index, layer in enumerate(layers):
            past.update(layer.keys[:, :, start:], layer.values[:, :, start:], index)
        return past
    vars(past).update(vars(whole))
    if isinstance(past, MarkedCache) and isinstance(runner, ChainRunner):
        past.mark = runner.mark or past.mark
    elif isinstance(past, MarkedCache) and start < past.mark_at:
        cache: Any = runner.cache  # type: ignore[attr-defined]
        past.mark = cache.committed(length=past.mark_at), past.mark_at
    return past


def _is_convolution(layer: Any) -> bool:
    return hasattr(layer, "conv_states")
