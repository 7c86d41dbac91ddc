"""Where do the states of the tokens live: a KV cache that takes a tree and keeps one path of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from collections.abc import Sequence

# Row strides that are multiples of 16 elements let CUDA's attention kernels read masks and states
# without a padded copy; 64 also keeps reallocations rare.
SLOT_MULTIPLE = 64


def round_up(num_slots: int) -> int:
    """The smallest multiple of `SLOT_MULTIPLE` that holds `num_slots`."""
    return -(-num_slots // SLOT_MULTIPLE) * SLOT_MULTIPLE


class _Length:
    """The number of committed slots, shared by the layers of a cache."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class TreeLayer(CacheLayerMixin):  # type: ignore[misc]
    """The states of one layer, `(batch_size, num_heads, capacity, head_dim)`, never windowed.

    Sliding and chunked layers keep every state too: a rejected tree would push states out of a
    rolling window that the next step still needs. Their windows live in the mask.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, length: _Length, capacity: int) -> None:
        super().__init__()
        self._length = length
        self._capacity = round_up(capacity)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates the layer, on the device and in the dtype of its first states."""
        self.keys = _slots_like(key_states, self._capacity)
        self.values = _slots_like(value_states, self._capacity)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes states after the committed slots and returns views of all up to them: no copy."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._length.value
        end = start + key_states.shape[-2]
        if end > self._capacity:
            self._grow(max(2 * self._capacity, end))
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, capacity: int) -> None:
        self._capacity = round_up(capacity)
        length = self._length.value
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = _slots_like(old, self._capacity)
            new[:, :, :length] = old[:, :, :length]
            setattr(self, name, new)

    def move(self, sources: torch.Tensor, start: int) -> None:
        """Copies the slots `sources`, int64 and ascending, to the slots from `start` on.

        Safe in place, as the selected states are copied out before any is written.
        """
        if self.is_initialized:
            sources = sources.to(self.keys.device)
            end = start + len(sources)
            self.keys[:, :, start:end] = self.keys.index_select(2, sources)
            self.values[:, :, start:end] = self.values.index_select(2, sources)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the states that `query_length` new tokens would see."""
        return self._length.value + query_length, 0

    def get_seq_length(self) -> int:
        """Number of committed slots."""
        return self._length.value

    def get_max_length(self) -> int:
        """-1: the layer grows where its first capacity does not do."""
        return -1


def _slots_like(states: torch.Tensor, capacity: int) -> torch.Tensor:
    batch_size, num_heads, _, head_dim = states.shape
    return states.new_empty((batch_size, num_heads, capacity, head_dim))


class TreeCache(Cache):  # type: ignore[misc]
    """A KV cache whose length moves only by `commit`, so that a rejected tree leaves no trace.

    A forward pass writes its states behind the committed ones; `commit` keeps some of them, in
    place. Slots that were not kept are overwritten by the next pass.

    Args:
        num_layers: Attention layers of the model.
        capacity: Slots to allocate at first, for committed tokens and one tree together. A cache
            that runs over it doubles, which copies it once.
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        self._length = _Length()
        super().__init__(layers=[TreeLayer(self._length, capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Number of committed slots; slot `i` holds the token at position `i`."""
        return self._length.value

    def advance(self, num_tokens: int) -> None:
        """Commits the first `num_tokens` tokens of the last forward pass: O(1)."""
        self._length.value += num_tokens

    def commit(self, keep: Sequence[int]) -> None:
        """Commits the tokens `keep`, ascending indices into the last forward pass.

        Copies nothing while ``keep[i] == i``, and after that only the kept states, never the prefix.
        """
        in_place = next((i for i, index in enumerate(keep) if i != index), len(keep))
        if in_place < len(keep):
            start = self.length + in_place
            sources = torch.tensor(keep[in_place:]) + self.length
            for layer in self.layers:
                layer.move(sources, start)
        self.advance(len(keep))
