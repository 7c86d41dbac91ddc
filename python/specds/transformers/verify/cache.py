"""KV cache of a request: a pass writes the states of a tree, and a commit keeps one path."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionLayer

from specds.transformers.native_model import CACHE_NAME as CACHE_NAME

RecurrentStates = tuple[Tensor, ...]

# Row strides that are multiples of 16 elements let CUDA's attention kernels read masks and states
# without a padded copy; 64 also keeps reallocations rare.
_SLOT_MULTIPLE = 64


def _round_up(num_slots: int) -> int:
    return -(-num_slots // _SLOT_MULTIPLE) * _SLOT_MULTIPLE


class TreeCache(Cache):
    """A KV cache whose length grows only by `commit`, so that a rejected tree leaves no trace.

    A token's *place* is its row times the capacity of a row, plus its slot. A pass writes its
    states to the places set by `place`, after the committed ones; `commit` keeps some of them, and
    the next pass overwrites the others. Slots are allocated after the first pass, which shows the
    shapes. All layers of one shape are one block, so that a commit is two operations.

    Sliding and chunked layers keep every state too, since a rejected tree would push states out of
    a rolling window; masks hide the states outside. For transformers this is a cache without
    layers.

    The inputs of convolutions are states of their layers too. A pass over trees reads those of the
    last ancestors of each token, so that a rejected tree leaves no trace in them either.

    Args:
        capacity: Slots of a row to allocate at first; a full cache grows by half.
        num_rows: Rows of the request.
    """

    def __init__(self, capacity: int, num_rows: int = 1) -> None:
        self.lengths = [0] * num_rows
        self.capacity = _round_up(capacity)
        self._num_rows = num_rows
        # The layers whose keys (0) or values (1) have the same shape, dtype and device.
        self._members: dict[Any, list[tuple[int, int]]] = {}
        # A block for each of these, `(members, num_rows * capacity, num_heads, head_dim)`.
        self._blocks: list[Tensor] = []
        # Keys and values of all slots by layer, `(num_slots, num_heads, head_dim)`, row by row.
        self.slots: dict[int, RecurrentStates] = {}
        # Keys and values that the pass sees, by layer.
        self._seen: dict[int, RecurrentStates] | None = None
        # Keys and values of a first pass, before there are blocks.
        self._held: dict[int, RecurrentStates] = {}
        self._places = torch.empty(0, dtype=torch.int64)
        self._view = (0, 0, 0)  # first row, number of rows, number of slots
        # Tokens that a convolution sees, and their places `(num_tokens, kernel_size)` in a pass.
        self.kernel_size = 0
        self._of_kernels: Tensor | None = None
        super().__init__(layers=[])

    @property
    def length(self) -> int:
        """Committed slots of the first row of a pass; slot `i` holds the token at position `i`."""
        return self.lengths[self._view[0]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0

    @property
    def storage(self) -> tuple[tuple[int, torch.Size], ...]:
        """Addresses and shapes of the blocks: larger ones may reuse the address of smaller ones."""
        return tuple((block.data_ptr(), block.shape) for block in self._blocks)

    @property
    def head_sizes(self) -> set[int]:
        """Head sizes of the stored states; empty before the first pass."""
        return {block.shape[-1] for block in self._blocks}

    @property
    def num_slots(self) -> int:
        return self._blocks[0].shape[1] if self._blocks else 0

    def restart(self, num_rows: int, room_for: int, capacity: int) -> None:
        """Start new rows, with room for `room_for`, in the present slots if these suffice."""
        capacity, self._held = _round_up(capacity), {}
        self.lengths, self._view = [0] * num_rows, (0, 0, 0)
        if self.num_slots < room_for * capacity:
            # Freed first, so that memory never holds the old slots and the new ones.
            self._blocks, self.slots = [], {}
        else:
            capacity = self.num_slots // room_for // _SLOT_MULTIPLE * _SLOT_MULTIPLE
        self._num_rows, self.capacity, self._seen = room_for, capacity, None

    def place(
        self,
        places: Tensor,
        end: int,
        first_row: int = 0,
        num_rows: int = 1,
        of_kernels: Tensor | None = None,
    ) -> None:
        """Set the places that the next pass writes, and the rows and slots that it sees.

        Args:
            places: int64 `(num_tokens,)`.
            end: The pass sees the slots before this one; 0 for its own states alone.
            first_row: First row of the pass.
            num_rows: Rows of the pass.
            of_kernels: int64 `(num_tokens, kernel_size)`, the places that convolutions see, with -1
                before the first token.
        """
        self._places, self._view, self._seen = places, (first_row, num_rows, end), None
        self._of_kernels = of_kernels

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states `(num_parts, num_heads, num_tokens, head_dim)` of a pass to a layer.

        Returns:
            The states that the pass sees, views `(num_rows, num_heads, end, head_dim)`.
        """
        states = key_states, value_states
        keys, values = self.seen(layer_idx) if self._write(states, layer_idx) else states
        return keys, values

    def _write(self, states: RecurrentStates, layer: int) -> bool:
        """Write states of a pass, and return whether it sees others."""
        if not self._blocks:
            self._held[layer] = states
            return False
        for slots, new in zip(self.slots[layer], states, strict=True):
            # The layers of a model may be on several devices.
            slots.index_copy_(0, self._places.to(slots.device), new.transpose(1, 2).flatten(0, 1))
        return self._view[2] > 0

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """Return None: `update_conv_state` has what a convolution sees."""

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Write the inputs `(num_rows, num_channels, num_tokens)` of a convolution to a layer.

        Returns:
            What the tokens of a pass see, `(num_rows, num_tokens, kernel_size, num_channels)`; the
            inputs themselves if it sees no others.
        """
        if not self._write((conv_states.mT[:, None],), layer_idx) or self._of_kernels is None:
            return conv_states
        (slots,) = self.slots[layer_idx]
        places = self._of_kernels.to(slots.device)
        seen = slots[places.clamp(min=0), 0] * (places >= 0)[..., None]
        return seen.view(len(conv_states), conv_states.shape[2], -1, conv_states.shape[1])

    def seen(self, layer: int) -> RecurrentStates:
        """Return the states of a layer that the pass sees."""
        if self._seen is None:
            # Made for all layers at once, since one alone costs as much.
            row, num_rows, end = self._view
            seen = (of[:, row : row + num_rows, :end].transpose(2, 3) for of in self._by_row())
            self._seen = self._by_layer(seen)
        return self._seen[layer]

    def _by_row(self) -> list[Tensor]:
        """Return the blocks as `(members, num_rows, capacity, num_heads, head_dim)`."""
        rows = self._num_rows, self.capacity
        used = (block[:, : rows[0] * rows[1]] for block in self._blocks)
        return [of.view(len(of), *rows, *of.shape[2:]) for of in used]

    def _by_layer(self, of_blocks: Iterable[Tensor]) -> dict[int, RecurrentStates]:
        made: dict[tuple[int, int], Tensor] = {}
        for members, of_block in zip(self._members.values(), of_blocks, strict=True):
            made |= zip(members, of_block.unbind(), strict=True)
        found: dict[int, RecurrentStates] = {}
        for (layer, _), of_layer in sorted(made.items(), key=lambda item: item[0]):
            found[layer] = *found.get(layer, ()), of_layer
        return found

    def settle(self) -> None:
        """Allocate the slots after the first pass; to be called after each pass over prompts."""
        if self._held:
            held, self._held, self._members = self._held, {}, {}
            for layer, pair in held.items():
                for kind, of in enumerate(pair):
                    shape = (of.shape[1], of.shape[-1]), of.dtype, of.device
                    self._members.setdefault(shape, []).append((layer, kind))
            self._allocate()
            for layer, states in held.items():
                self._write(states, layer)

    def commit(self, kept: Sequence[Sequence[int]], num_moved: int = 0) -> None:
        """Commit tokens of the last pass.

        Args:
            kept: Their indices in each row, ascending.
            num_moved: The first tokens of each row that have been moved already.
        """
        moves: list[tuple[int, int]] = []
        for row, keep in enumerate(kept):
            start = row * self.capacity + self.lengths[row]
            pairs = enumerate(keep[num_moved:], num_moved)
            moves += [(start + old, start + new) for new, old in pairs if new != old]
            self.lengths[row] += len(keep)
        if moves:
            # torch takes longer to read lists.
            self.move(*torch.from_numpy(np.array(moves).T))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy states between places, int64 `(num_tokens,)`: all are read, then all are written."""
        for block in self._blocks:
            read, write = (of.to(block.device, non_blocking=True) for of in (sources, targets))
            block.index_copy_(1, write, block.index_select(1, read))

    def copy_row(self, source: int, target: int) -> None:
        length = self.lengths[target] = self.lengths[source]
        for block in self._by_row():
            block[:, target, :length] = block[:, source, :length]

    def drop_row(self, row: int) -> None:
        """Drop a row; the last one gets its number."""
        last = len(self.lengths) - 1
        if row < last:
            self.copy_row(last, row)
        self.lengths.pop()

    def committed(self, row: int = 0, length: int | None = None) -> DynamicCache:
        """Copy a row's committed states, or the first of them, to a cache of transformers."""
        cache = DynamicCache()
        start = row * self.capacity
        kept = slice(start, start + (self.lengths[row] if length is None else length))
        for layer, states in self.slots.items():
            copied = [of[None, kept].transpose(1, 2).clone() for of in states]
            if len(copied) == 1:
                convolution = LinearAttentionLayer()
                inputs = copied[0][:, 0].mT
                convolution.update_conv_state(inputs, conv_kernel_size=self.kernel_size)
                cache.layers.append(convolution)
            else:
                cache.update(copied[0], copied[1], layer)
        return cache

    def reserve(self, num_slots: int) -> None:
        """Grow to at least this number of slots for each row."""
        if num_slots > self.capacity:
            old, capacity = self._by_row(), self.capacity
            self.capacity = _round_up(max(capacity * 3 // 2, num_slots))
            if self._blocks:
                self._allocate()
            for source, target in zip(old, self._by_row(), strict=True):
                target[:, :, :capacity] = source

    # A tensor that is made in inference mode can only be written to in it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _allocate(self) -> None:
        num_slots = self._num_rows * self.capacity
        # Zeros, since masks do not hide NaN in the slots after a row.
        self._blocks = [
            torch.zeros((len(members), num_slots, *shape), dtype=dtype, device=device)
            for (shape, dtype, device), members in self._members.items()
        ]
        self.slots, self._seen = self._by_layer(self._blocks), None
