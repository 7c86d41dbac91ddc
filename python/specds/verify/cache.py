"""Where do the states of the tokens live: a KV cache that takes a tree and keeps one path of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

if TYPE_CHECKING:
    from collections.abc import Sequence

# Row strides that are multiples of 16 elements let CUDA's attention kernels read masks and states
# without a padded copy; 64 also keeps reallocations rare.
SLOT_MULTIPLE = 64


def round_up(num_slots: int) -> int:
    """The smallest multiple of `SLOT_MULTIPLE` that holds `num_slots`."""
    return -(-num_slots // SLOT_MULTIPLE) * SLOT_MULTIPLE


def _in_sequence(states: torch.Tensor) -> torch.Tensor:
    """`(num_rows, num_heads, width, head_dim)` as one row of all their slots."""
    return states.transpose(0, 1).flatten(1, 2)[None]


class _Length:
    """The number of committed slots, shared by the layers of a cache."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The states of one layer, `(1, num_heads, capacity, head_dim)`, never windowed.

    Sliding and chunked layers keep every state too: a rejected tree would push states out of a
    rolling window that the next step still needs. Their windows live in the mask.
    """

    keys: torch.Tensor
    values: torch.Tensor
    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, length: _Length) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Takes the states of the first pass as they are: `TreeCache` moves them when it ends."""
        self.keys, self.values = key_states, value_states
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes states after the committed slots and returns views of all up to them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        start = self._length.value
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the states that `query_length` new tokens would see."""
        return self._length.value + query_length, 0

    def get_seq_length(self) -> int:
        """Number of committed slots."""
        return self._length.value

    def get_max_length(self) -> int:
        """-1: the cache grows where its first capacity does not do."""
        return -1


class TreeCache(Cache):
    """A KV cache whose length grows only by `commit`, so that a rejected tree leaves no trace.

    A forward pass writes its states behind the committed ones; `commit` keeps some of them, in
    place. Slots that were not kept are overwritten by the next pass. Slots are allocated when the
    first pass has told the shapes, all layers of one shape in one block, so that a commit is two
    operations and not four per layer (6 layers on a CPU: 6 us instead of 66).

    Args:
        num_layers: Attention layers of the model.
        capacity: Slots to allocate at first, for committed tokens and one tree together. A cache
            that runs over it doubles, which copies it once.
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        self._length = _Length()
        self._first_capacity = capacity
        self._capacity = 0
        self._blocks: list[torch.Tensor] = []
        self._layers = [TreeLayer(self._length) for _ in range(num_layers)]
        super().__init__(layers=[*self._layers])

    @property
    def length(self) -> int:
        """Number of committed slots; slot `i` holds the token at position `i`."""
        return self._length.value

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the states of a pass to a layer; returns the layer's states up to them, as views.

        The rows of a batch are laid one after the other: there is one prefix, and it is theirs.
        """
        if key_states.shape[0] > 1:
            key_states, value_states = _in_sequence(key_states), _in_sequence(value_states)
        num_slots = self.length + key_states.shape[-2]
        if num_slots > self._capacity and self._blocks:
            self._allocate(max(2 * self._capacity, num_slots))
        return self._layers[layer_idx].update(key_states, value_states)

    def advance(self, num_tokens: int) -> None:
        """Commits the first `num_tokens` tokens of the last forward pass: O(1) after the first."""
        self._length.value += num_tokens
        if not self._blocks:
            self._allocate(max(self._first_capacity, self.length))

    def commit(self, keep: Sequence[int]) -> None:
        """Commits the tokens `keep`, ascending indices into the last forward pass.

        Copies nothing while ``keep[i] == i``, after that the kept states, and never the prefix.
        """
        in_place = next((i for i, index in enumerate(keep) if i != index), len(keep))
        if in_place < len(keep):
            start, end = self.length + in_place, self.length + len(keep)
            sources = torch.tensor(keep[in_place:]) + self.length
            for block in self._blocks:
                # Selected states are copied out before any is written, so this is safe in place.
                block[:, :, :, start:end] = block.index_select(3, sources.to(block.device))
        self.advance(len(keep))

    def roll_back(self, length: int) -> None:
        """Forgets all but the first `length` committed tokens: O(1)."""
        self._length.value = min(length, self.length)

    def committed(self) -> DynamicCache:
        """A copy of the committed states in a cache that plain decoding can go on from."""
        cache = DynamicCache()
        for index, layer in enumerate(self._layers):
            if layer.is_initialized:
                slots = slice(self.length)
                cache.update(layer.keys[:, :, slots], layer.values[:, :, slots], index)
        return cache

    def _allocate(self, num_slots: int) -> None:
        """Moves all committed states to new blocks, one per shape of layer."""
        self._capacity = round_up(num_slots)
        by_shape: dict[Any, list[tuple[TreeLayer, str]]] = {}
        for layer in self._layers:
            for name in ("keys", "values") if layer.is_initialized else ():
                states = getattr(layer, name)
                shape = (states.shape[1], states.shape[3], states.dtype, states.device)
                by_shape.setdefault(shape, []).append((layer, name))
        self._blocks = [self._block(members) for members in by_shape.values()]

    def _block(self, members: list[tuple[TreeLayer, str]]) -> torch.Tensor:
        first = getattr(*members[0])
        _, num_heads, _, head_dim = first.shape
        block: torch.Tensor = first.new_empty(
            (len(members), 1, num_heads, self._capacity, head_dim)
        )
        for slots, (layer, name) in zip(block, members, strict=True):
            slots[:, :, : self.length] = getattr(layer, name)[:, :, : self.length]
            setattr(layer, name, slots)
        return block
