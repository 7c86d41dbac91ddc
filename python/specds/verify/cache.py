"""Where do the states of the tokens live: a KV cache that takes a tree and keeps one path of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


def _widest(states: torch.Tensor) -> torch.Tensor:
    """The same memory in elements of 8 bytes where these fit: by index, it is moved one by one."""
    size = states.element_size() * states.shape[-1]
    return states if size % 8 else states.view(torch.int64)


class _Place:
    """Where the next pass writes, shared by the layers of a cache.

    Attributes:
        lengths: Committed slots of each row.
        row: The row that a pass without `slots` is of; its states go behind the committed ones.
        slots: int64 `(num_tokens,)`, where the states of a pass over the first rows go.
        rows: int64 `(num_tokens,)`, in which rows these are.
        num_rows: How many rows such a pass sees.
        end: It sees the slots before this one.
    """

    __slots__ = ("end", "lengths", "num_rows", "row", "rows", "slots")

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.row = 0
        self.slots: torch.Tensor | None = None
        self.rows: torch.Tensor | None = None
        self.num_rows = 0
        self.end = 0

    @property
    def length(self) -> int:
        return self.lengths[self.row]


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The states of one layer, `(num_rows, num_heads, capacity, head_dim)`, never windowed.

    Sliding and chunked layers keep every state too: a rejected tree would push states out of a
    rolling window that the next step still needs. Their windows live in the mask.
    """

    keys: torch.Tensor
    values: torch.Tensor
    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Takes the states of the first pass as they are: `TreeCache` moves them when it ends."""
        self.keys, self.values = key_states, value_states
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the states of a first pass, or writes them to the slots of rows that were placed.

        Where one row goes on, `TreeCache` does it for all layers.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        place = self._place
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            states.transpose(1, 2)[place.rows, place.slots] = new[0].transpose(0, 1)
        seen = slice(place.num_rows), slice(None), slice(place.end)
        return self.keys[seen], self.values[seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the states that `query_length` new tokens would see."""
        return self._place.length + query_length, 0

    def get_seq_length(self) -> int:
        """Number of committed slots."""
        return self._place.length

    def get_max_length(self) -> int:
        """-1: the cache grows where its first capacity does not do."""
        return -1


class _Views(NamedTuple):
    """Where a pass of one row writes in a layer, and what it sees there, its own states included.

    Made for all layers at once they cost what they cost for one (6 layers on a CPU: 100 us less).
    """

    new_keys: torch.Tensor
    keys: torch.Tensor
    new_values: torch.Tensor
    values: torch.Tensor


class TreeCache(Cache):
    """A KV cache whose length grows only by `commit`, so that a rejected tree leaves no trace.

    A forward pass writes its states behind the committed ones; `commit` keeps some of them, in
    place. Slots that were not kept are overwritten by the next pass. Slots are allocated when the
    first pass has shown the shapes, all layers of one shape in one block, so that a commit is two
    operations and not four per layer (6 layers on a CPU: 6 us instead of 66).

    Several sequences are as many rows, each of its own length. A pass is of one row, that of
    `use_row`, or of the first few, which the model sees as one sequence (see `place_rows`).

    Args:
        num_layers: Attention layers of the model.
        capacity: Slots of a row to allocate at first, for committed tokens and one tree together. A
            cache that runs over it grows by half, which copies it once.
        num_rows: Sequences.
    """

    def __init__(self, num_layers: int, capacity: int, num_rows: int = 1) -> None:
        self._place = _Place(num_rows)
        self._num_rows = num_rows
        self._first_capacity = capacity
        self._capacity = 0
        self._blocks: list[torch.Tensor] = []
        # Whose states each block holds, in its order.
        self._members: list[list[tuple[TreeLayer, str]]] = []
        self._views: list[_Views] = []
        self._views_at: tuple[int, int, int] | None = None
        self._layers = [TreeLayer(self._place) for _ in range(num_layers)]
        super().__init__(layers=[*self._layers])

    @property
    def length(self) -> int:
        """Committed slots of the row in use; slot `i` holds the token at position `i`."""
        return self._place.length

    @property
    def lengths(self) -> list[int]:
        """Committed slots of each row."""
        return self._place.lengths

    @property
    def storage(self) -> tuple[int, ...]:
        """Where the slots lie: it changes when the cache grows."""
        return tuple(block.data_ptr() for block in self._blocks)

    def restart(self, num_rows: int, room_for: int, capacity: int) -> None:
        """Forgets all rows, and begins `num_rows` in the slots that there are, if they are enough.

        Args:
            num_rows: Sequences.
            room_for: Rows to have slots for, not fewer.
            capacity: Slots of a row.
        """
        self._place.lengths[:] = [0] * num_rows
        self.use_row(0)
        self._first_capacity = capacity
        if not self._blocks:
            # A request that failed in its first pass has left states of its own length.
            for layer in self._layers:
                layer.is_initialized = False
        if room_for > self._num_rows or not self._blocks:
            self._num_rows = room_for
            if self._blocks:
                self._allocate(max(capacity, self._capacity))
        self.reserve(capacity)

    def use_row(self, row: int) -> None:
        """Passes, `advance` and `commit` are of this row from now on."""
        self._place.row = row
        self._place.slots = self._place.rows = None

    def place_rows(self, num_rows: int, rows: torch.Tensor, slots: torch.Tensor, end: int) -> None:
        """The next pass is of the first rows, and its states go where `rows` and `slots` say.

        The model sees one sequence of the tokens of all rows; the attention gets the states of each
        row up to slot `end`.

        Args:
            num_rows: How many rows.
            rows: int64 `(num_tokens,)`, the row of each token.
            slots: int64 `(num_tokens,)`, and its slot there.
            end: More than any of `slots`.
        """
        place = self._place
        place.num_rows, place.rows, place.slots, place.end = num_rows, rows, slots, end
        self.reserve(end)

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
        layer = self._layers[layer_idx]
        if self._place.slots is not None or not layer.is_initialized:
            return layer.update(key_states, value_states)
        views = self._views_of_pass(key_states.shape[-2])[layer_idx]
        views.new_keys.copy_(key_states)
        views.new_values.copy_(value_states)
        return views.keys, views.values

    def advance(self, num_tokens: int) -> None:
        """Commits the first `num_tokens` tokens of the last forward pass: O(1) after the first."""
        self._place.lengths[self._place.row] += num_tokens
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
                row = block[:, self._place.row]
                # Selected states are copied out before any is written, so this is safe in place.
                row[:, :, start:end] = row.index_select(2, sources.to(block.device))
        self.advance(len(keep))

    def roll_back(self, length: int) -> None:
        """Forgets all but the first `length` committed tokens: O(1)."""
        self._place.lengths[self._place.row] = min(length, self.length)

    def move_rows(self, lengths: torch.Tensor, path: torch.Tensor) -> None:
        """Moves tokens of the last pass over the first rows, by tensors alone, and commits none.

        Args:
            lengths: int64 `(num_rows,)`, committed tokens.
            path: int64 `(num_rows, width)`; token ``path[row, i]`` of the pass becomes token `i`.
        """
        rows = torch.arange(len(path), device=path.device)[:, None]
        targets = lengths[:, None] + torch.arange(path.shape[1], device=path.device)
        sources = lengths[:, None] + path
        for block in self._blocks:
            by_slot = _widest(block).transpose(2, 3)
            # Copied out before any is written, so this is safe in place.
            by_slot[:, rows, targets] = by_slot[:, rows, sources]

    def drop_row(self, row: int) -> None:
        """Forgets a row; the last one takes its number."""
        lengths = self._place.lengths
        last = len(lengths) - 1
        if row < last:
            for block in self._blocks:
                slots = slice(lengths[last])
                block[:, row, :, slots] = block[:, last, :, slots]
            lengths[row] = lengths[last]
        lengths.pop()

    def committed(self) -> DynamicCache:
        """A copy of the row's committed states in a cache that plain decoding can go on from."""
        cache = DynamicCache()
        for index, layer in enumerate(self._layers):
            if layer.is_initialized:
                row, slots = slice(self._place.row, self._place.row + 1), slice(self.length)
                cache.update(layer.keys[row, :, slots], layer.values[row, :, slots], index)
        return cache

    def reserve(self, num_slots: int) -> None:
        """Grows where a row has fewer slots, after the first pass."""
        if num_slots > self._capacity and self._blocks:
            self._allocate(max(self._capacity * 3 // 2, num_slots))

    def _views_of_pass(self, num_tokens: int) -> list[_Views]:
        """The views of all layers for a pass over the row in use, made by the first that asks."""
        row, start = self._place.row, self._place.length
        end = start + num_tokens
        self.reserve(end)
        if self._views_at != (row, start, end):
            made: dict[tuple[TreeLayer, str], tuple[torch.Tensor, torch.Tensor]] = {}
            for block, members in zip(self._blocks, self._members, strict=True):
                new = block[:, row : row + 1, :, start:end].unbind()
                seen = block[:, row : row + 1, :, :end].unbind()
                made |= dict(zip(members, zip(new, seen, strict=True), strict=True))
            self._views = [
                _Views(*made[layer, "keys"], *made[layer, "values"]) for layer in self._layers
            ]
            self._views_at = row, start, end
        return self._views

    # What is made in inference mode could only be written to in it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _allocate(self, num_slots: int) -> None:
        """Moves all committed states to new blocks, one per shape of layer."""
        capacity = round_up(num_slots)
        by_shape: dict[Any, list[tuple[TreeLayer, str]]] = {}
        for layer in self._layers:
            for name in ("keys", "values") if layer.is_initialized else ():
                states = getattr(layer, name)
                shape = (states.shape[1], states.shape[3], states.dtype, states.device)
                by_shape.setdefault(shape, []).append((layer, name))
        blocks = [self._block(members, capacity) for members in by_shape.values()]
        # All or none: memory may run out between two of them.
        for block, members in zip(blocks, by_shape.values(), strict=True):
            for slots, (layer, name) in zip(block, members, strict=True):
                setattr(layer, name, slots)
        self._blocks, self._capacity = blocks, capacity
        self._members = [*by_shape.values()]
        self._views_at = None

    def _block(self, members: list[tuple[TreeLayer, str]], capacity: int) -> torch.Tensor:
        first, lengths = getattr(*members[0]), self._place.lengths
        _, num_heads, _, head_dim = first.shape
        # Zeros: what lies behind a row is hidden by a mask, under which NaN would show.
        block: torch.Tensor = first.new_zeros(
            (len(members), self._num_rows, num_heads, capacity, head_dim)
        )
        committed = slice(max(lengths))
        for slots, (layer, name) in zip(block, members, strict=True):
            held = getattr(layer, name)[: len(slots), :, committed]
            slots[: len(held), :, committed] = held
        return block
