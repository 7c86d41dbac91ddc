"""The states in a model's own cache, whatever holds them: copied, restored, joined and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

# By name, the dimensions of rows and tokens of what grows by each token, in new memory: a longer
# tensor has the shorter one at its start, so it is cut and not copied.
_GROWING = {"keys": (0, -2), "values": (0, -2), "indexer_keys": (0, -2)}
_GROWING |= {"indexer_position_ids": (1, -1)}
# Where a layer with a window counts its tokens. Its keys are new memory after each pass.
_SEEN = "cumulative_length"


class MarkedCache(DynamicCache):
    """The cache of a conversation, with the states at an earlier place to return to.

    A pass over a prompt copies them after `mark_at` tokens; `mark` has them and that number.
    """

    mark_at = 0
    mark: tuple[Any, int] | None = None

    def rolled_back(self, length: int) -> MarkedCache:
        """Return the longest states within the first tokens: these, those of the mark, or none."""
        if self.get_seq_length() <= length:
            return self
        earlier = MarkedCache()
        if self.mark is not None and self.mark[1] <= length:
            vars(earlier).update(vars(copied(self.mark[0])), mark=self.mark)
        return earlier


def _made(caches: Sequence[Any], make: Callable[..., Any], key: Any = "layers", of: Any = 0) -> Any:
    """Return a new cache, whose values `make` makes of those at the same place in others.

    It is called with these, their name `key`, and the dictionary `of` that has the first of them.
    """
    first = caches[0]
    if isinstance(first, dict):
        return {at: _made([each[at] for each in caches], make, key or at, first) for at in first}
    if isinstance(first, list):
        return [_made(each, make, key, of) for each in zip(*caches, strict=False)]
    if key != "layers":
        return make(caches, key, of)
    whole = copy(first)
    vars(whole).update(_made([vars(each) for each in caches], make, ""))
    return whole


def copied(cache: Any, *, is_short: bool = False) -> Any:
    """Return a copy that passes can write to; with `is_short`, of what grows only the length."""

    def make(values: Sequence[Any], key: Any, of: Any) -> Any:
        (value,) = values
        if not isinstance(value, Tensor) or value.numel() == 0:
            return value
        if key not in _GROWING:
            return value.clone()
        return value.shape[_GROWING[key][1]] if is_short and _SEEN not in of else value

    return _made([cache], make)


def restored(cache: Any, before: Any) -> Any:
    """Return a cache as it was before a pass, from a short copy, which becomes a part of it.

    On a CUDA device states are written in place, since graphs may hold their addresses.
    """

    def make(values: Sequence[Any], key: Any, _: Any) -> Any:
        kept, now = values
        if key in _GROWING and isinstance(kept, int):
            return now.narrow(_GROWING[key][1], 0, kept)
        is_fixed = isinstance(kept, Tensor) and now.is_cuda and now.shape == kept.shape
        return now.copy_(kept) if is_fixed else kept

    return _made([before, cache], make)


def joined(caches: Sequence[Any]) -> Any:
    """Return a new cache of several rows; shorter ones are padded on the left, as by `generate`."""

    def make(values: Sequence[Any], key: Any, _: Any) -> Any:
        if not isinstance(values[0], Tensor) or values[0].dim() < 2:
            return max(values) if key == _SEEN else values[0]
        row, token = _GROWING.get(key, (0, 0))
        if key in _GROWING:
            most = max(of.shape[token] for of in values)
            values = [pad(of, (0, 0) * (-1 - token) + (most - of.shape[token], 0)) for of in values]
        return torch.cat([*values], row)

    return _made(caches, make)


def part(cache: Any, row: int, length: int) -> Any:
    """Return a row of a joined cache as views, of the last `length` tokens."""

    def make(values: Sequence[Any], key: Any, _: Any) -> Any:
        (value,) = values
        if not isinstance(value, Tensor) or value.dim() < 2:
            return length if key == _SEEN else value
        rows, token = _GROWING.get(key, (0, 0))
        value, size = value.narrow(rows, row, 1), min(value.shape[token], length)
        return value.narrow(token, -size, size) if key in _GROWING else value

    return _made([cache], make)
