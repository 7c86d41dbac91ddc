"""Copies of states between the caller's cache and the request's."""

from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from specds.verify.cache import TreeCache


def load(past: DynamicCache, cache: TreeCache) -> None:
    """Copy the states of the only row of `past` into the first row of an empty cache."""
    length = past.get_seq_length()
    if length == 0:
        return
    layers: list[Any] = past.layers
    cache.reserve(length)
    cache.place(torch.arange(length, device=layers[0].keys.device), 0)
    for index, layer in enumerate(layers):
        # A sliding window has dropped the first states, which no later token sees.
        lost = (0, 0, length - layer.keys.shape[2], 0)
        cache.update(pad(layer.keys, lost), pad(layer.values, lost), index)
    cache.settle()
    cache.lengths[0] = length


def extend(past: DynamicCache, cache: TreeCache) -> DynamicCache:
    """Append to `past` the states that only `cache` has, as the baseline does."""
    start = past.get_seq_length()
    layers: list[Any] = cache.committed().layers
    for index, layer in enumerate(layers):
        past.update(layer.keys[:, :, start:], layer.values[:, :, start:], index)
    return past
