"""What goes into a pass: last tokens and their drafts as arrays, and attention masks over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specds._core import TokenTree, pack_rows

Masks = Tensor | dict[str, Tensor] | None

# Finite with what is added to it, also in a part of the slots that is hidden altogether.
_HIDDEN = -1e9

LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
"""The types of layers that a tree can be verified by."""


class Inputs(NamedTuple):
    """The last tokens of some rows and their drafts; padding sees itself, and nothing sees it.

    Attributes:
        token_ids: int64 `(num_rows, width)`.
        depths: int64 `(num_rows, width)`, how far a token is from the last one.
        parents: int64 `(num_rows, width)`, places in the row; the last token is its own.
        lengths: int64 `(num_rows,)`, committed tokens.
        ancestors: int64 `(num_rows, width, num_words)`: bit ``i % 64`` of word ``i // 64`` tells
            whether a token sees the one at place `i` of its row.
        numbers: int64 `(size,)`, the memory of all of these, so that one copy moves them.
    """

    token_ids: Tensor
    depths: Tensor
    parents: Tensor
    lengths: Tensor
    ancestors: Tensor
    numbers: Tensor

    @classmethod
    def on_host(cls, num_rows: int, width: int, *, pinned: bool = False) -> Inputs:
        """Uninitialised memory of the host; `pinned` for copies that do not block."""
        size = num_rows * (width * (3 + -(-width // 64)) + 1)
        numbers = torch.empty(size, dtype=torch.int64, pin_memory=pinned, device="cpu")
        return cls._of(numbers, num_rows, width)

    @classmethod
    def _of(cls, numbers: Tensor, num_rows: int, width: int) -> Inputs:
        num_tokens = num_rows * width
        tokens, depths, parents = numbers[: 3 * num_tokens].view(3, num_rows, width)
        lengths = numbers[3 * num_tokens :][:num_rows]
        ancestors = numbers[3 * num_tokens + num_rows :].view(num_rows, width, -1)
        return cls(tokens, depths, parents, lengths, ancestors, numbers)

    def to(self, device: torch.device) -> Inputs:
        return self._of(self.numbers.to(device, copy=True), *self.token_ids.shape)

    def visible(self) -> Tensor:
        """`ancestors` as bool `(num_rows, width, width)`."""
        bits = torch.arange(64, device=self.ancestors.device)
        seen = (self.ancestors[..., None] >> bits) & 1
        return seen.flatten(2)[..., : self.ancestors.shape[1]].bool()

    def fill(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], lengths: Sequence[int]
    ) -> None:
        """Writes rows, where the memory is the host's; those after the last one are padding."""
        pack_rows(self.numbers.numpy(), self.token_ids.shape[1], token_ids, trees, lengths)


class LocalAttention(NamedTuple):
    """How far back a layer attends, as in `tree_attention`; by default to all that came before."""

    window: int | None = None
    chunk: int | None = None


def layer_types(config: Any) -> list[str]:
    """The attention type of each layer of a text configuration."""
    if hasattr(config, "layer_types"):
        return list(config.layer_types)
    has_window = getattr(config, "sliding_window", None) is not None
    kind = "sliding_attention" if has_window else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def local_attention(layer_type: str, config: Any) -> LocalAttention:
    """How far back the layers of a type attend, one of `LAYER_TYPES`."""
    if layer_type == "sliding_attention":
        return LocalAttention(window=int(config.sliding_window))
    if layer_type == "chunked_attention":
        return LocalAttention(chunk=int(config.attention_chunk_size))
    return LocalAttention()


class MaskBuilder:
    """Makes attention masks: additive ones, which every attention implementation reads alike.

    Windows count positions, so nodes of the same depth see equally far back.

    Args:
        config: The model's text configuration.
        dtype: That of the queries, which is what attention kernels read.
        group: How many query heads share a row of the mask (see `attend_packed`).
    """

    def __init__(self, config: Any, dtype: torch.dtype, group: int = 1) -> None:
        # The rule by which transformers decides whether a model takes one mask or one per type.
        self._by_layer_type = hasattr(config, "layer_types")
        kinds = sorted({*layer_types(config)})
        self._limits = {kind: local_attention(kind, config) for kind in kinds}
        self._hidden = max(torch.finfo(dtype).min, _HIDDEN)
        self._dtype = dtype
        self._group = group
        self.has_windows = any(map(any, self._limits.values()))

    def build(self, visible: Tensor, depths: Tensor, lengths: Tensor, end: int) -> Masks:
        """The mask `(num_rows, 1, group * width, end)`, or one for each layer type.

        Only shapes are read on the host, so that a CUDA graph can hold this.

        Args:
            visible: bool `(num_rows, width, width)`, which tokens of its row each one sees.
            depths: int64 `(num_rows, width)`, how far each is from the row's length.
            lengths: int64 `(num_rows,)`, committed tokens, behind which the row's states are.
            end: Slots that the mask covers.
        """
        num_rows, width = depths.shape
        positions, slots = lengths[:, None] + depths, torch.arange(end, device=depths.device)
        places = (lengths[:, None] + slots[:width])[:, None].expand_as(visible)
        masks = {}
        for kind, limit in self._limits.items():
            of_prefix, of_nodes = (slots < lengths[:, None])[:, None], visible
            if any(limit):
                earliest = positions[:, :, None] + 1 - (limit.window or 0)
                if limit.chunk is not None:
                    earliest = (positions - positions % limit.chunk)[:, :, None]
                of_prefix = of_prefix & (slots >= earliest)
                of_nodes = visible & (positions[:, None] >= earliest)
            seen = of_prefix.expand(-1, width, -1).scatter(2, places, of_nodes)
            mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
            mask.masked_fill_(~seen, self._hidden)
            masks[kind] = mask[:, None].repeat(1, self._group, 1, 1).view(num_rows, 1, -1, end)
        return masks if self._by_layer_type else masks.popitem()[1]
