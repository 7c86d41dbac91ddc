"""The states in a model's own cache: kept and restored, copied, joined for several rows and split.

What a cache holds decides, not its class: dictionaries and lists of tensors in its layers, or in
the cache itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    Attributes:
        mark_at: Tokens after which a pass over a prompt copies the states.
        mark: The copy, and its number of tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mark_at = 0
        self.mark: tuple[Any, int] | None = None

    def rolled_back(self, length: int) -> MarkedCache:
        """Return the longest states within the first tokens: these, those of the mark, or none."""
        if self.get_seq_length() <= length:
            return self
        earlier = MarkedCache()
        if self.mark is not None and self.mark[1] <= length:
            vars(earlier).update(vars(copied(self.mark[0])), mark=self.mark)
        return earlier


def _leaves(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the dictionaries and lists that hold states, each with the key of one value in it."""
    for key, value in [*(holder.items() if isinstance(holder, dict) else enumerate(holder))]:
        if isinstance(value, (dict, list)) and key != "layers":
            yield from _leaves(value)
        elif key != "layers":
            yield holder, key


class Kept:
    """The states of a cache as they are now."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._buffers: list[Tensor] = []
        self.keep()

    def keep(self) -> None:
        """Keep the present states, in the same memory where it fits."""
        self._cut: list[tuple[Any, Any, int]] = []
        self._copied: list[tuple[Any, Any]] = []
        self._rest: list[tuple[Any, Any, Any]] = []
        for of in (*self._cache.layers, self._cache):
            for holder, key in _leaves(vars(of)):
                value = holder[key]
                if not isinstance(value, Tensor) or value.dim() == 0 or value.numel() == 0:
                    self._rest.append((holder, key, value))
                elif key not in _GROWING:
                    self._copied.append((holder, key))
                elif _SEEN in holder:
                    self._rest.append((holder, key, value))
                else:
                    self._cut.append((holder, key, value.shape[_GROWING[key][1]]))
        now = [holder[key] for holder, key in self._copied]
        if now and [of.shape for of in now] == [of.shape for of in self._buffers]:
            torch._foreach_copy_(self._buffers, now)
        else:
            self._buffers = [of.clone() for of in now]

    def restore(self) -> bool:
        """Restore the states of the cache, and return whether they are still kept.

        On a CUDA device they are written in place, in the order of the stream, since graphs may
        hold their addresses. On a CPU the two copies trade places, which costs nothing.
        """
        for holder, key, length in self._cut:
            holder[key] = holder[key].narrow(_GROWING[key][1], 0, length)
        for holder, key, value in self._rest:
            holder[key] = value
        now = [holder[key] for holder, key in self._copied]
        pairs = [*zip(now, self._buffers, strict=True)]
        if now and all(of.is_cuda and of.shape == kept.shape for of, kept in pairs):
            torch._foreach_copy_(now, self._buffers)
            return True
        for (holder, key), kept in zip(self._copied, self._buffers, strict=True):
            holder[key] = kept
        self._buffers = now
        return False


def _made(caches: Sequence[Any], make: Callable[[Any, Any, list[Any]], Any]) -> Any:
    """Return a cache whose values are made of those at the same place of others."""

    def mapped(key: Any, values: list[Any], holder: Any) -> Any:
        first = values[0]
        if isinstance(first, dict):
            return {of: mapped(of, [each[of] for each in values], first) for of in first}
        if isinstance(first, list):
            return [mapped(key, [*each], first) for each in zip(*values, strict=True)]
        return make(holder, key, values)

    def copied(holders: Sequence[Any]) -> Any:
        other = copy(holders[0])
        for key in vars(other).keys() - {"layers"}:
            values = [vars(of)[key] for of in holders]
            vars(other)[key] = mapped(key, values, vars(holders[0]))
        return other

    whole = copied(caches)
    whole.layers = [copied(layers) for layers in zip(*(of.layers for of in caches), strict=True)]
    return whole


def copied(cache: Any) -> Any:
    """Return a copy that passes can write to."""

    def make(_: Any, key: Any, values: list[Any]) -> Any:
        is_written = isinstance(values[0], Tensor) and key not in _GROWING
        return values[0].clone() if is_written else values[0]

    return _made([cache], make)


def joined(caches: Sequence[Any]) -> Any:
    """Return a new cache of several rows; shorter ones are padded on the left, as by `generate`."""

    def make(_: Any, key: Any, values: list[Any]) -> Any:
        if key == _SEEN:
            return max(values)
        if not isinstance(values[0], Tensor) or values[0].dim() < 2:
            return values[0]
        row, token = _GROWING.get(key, (0, 0))
        if key in _GROWING:
            most = max(of.shape[token] for of in values)
            room = [(0, 0) * (-1 - token) + (most - of.shape[token], 0) for of in values]
            values = [pad(of, size) for of, size in zip(values, room, strict=True)]
        return torch.cat(values, row)

    return _made(caches, make)


def part(cache: Any, row: int, length: int) -> Any:
    """Return a row of a joined cache as views, of the last `length` tokens."""

    def make(_: Any, key: Any, values: list[Any]) -> Any:
        (value,) = values
        if key == _SEEN:
            return length
        if not isinstance(value, Tensor) or value.dim() < 2:
            return value
        rows, token = _GROWING.get(key, (0, 0))
        value = value.narrow(rows, row, 1)
        if key in _GROWING:
            size = value.shape[token]
            value = value.narrow(token, size - min(size, length), min(size, length))
        return value

    return _made([cache], make)
