"""Inputs of a forward pass: last tokens and drafts as arrays, and their attention masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specds._core import TokenTree, pack_rows

Masks = Tensor | dict[str, Tensor] | None

# Sums with this value stay finite, also if all slots of a part are hidden.
_HIDDEN = -1e9

LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
"""The types of layers with which a tree can be verified."""


CONVOLUTION = "conv"
"""The type of LFM2's layers that are convolutions over a few tokens."""


class Inputs(NamedTuple):
    """The last tokens of some rows and their drafts; padding sees only itself, and is not seen.

    Attributes:
        token_ids: int64 `(num_rows, width)`.
        depths: int64 `(num_rows, width)`, distances from the last token.
        parents: int64 `(num_rows, width)`, places in the row; the last token is its own parent.
        lengths: int64 `(num_rows,)`, committed tokens.
        ancestors: int64 `(num_rows, width, num_words)`: bit ``i % 64`` of word ``i // 64`` is 1 if
            a token sees the token at place `i` of its row.
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
        """Allocate uninitialized memory on the host; `pinned` for copies that do not block."""
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
        """Return `ancestors` as bool `(num_rows, width, width)`."""
        bits = torch.arange(64, device=self.ancestors.device)
        seen = (self.ancestors[..., None] >> bits) & 1
        return seen.flatten(2)[..., : self.ancestors.shape[1]].bool()

    def fill(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], lengths: Sequence[int]
    ) -> None:
        """Write rows to memory of the host; rows after the last one are padding."""
        pack_rows(self.numbers.numpy(), self.token_ids.shape[1], token_ids, trees, lengths)


class LocalAttention(NamedTuple):
    """Limits of a layer's attention, as in `tree_attention`; by default it sees all positions."""

    window: int | None = None
    chunk: int | None = None


def layer_types(config: Any) -> list[str]:
    """Return the attention type of each layer of a text configuration."""
    if hasattr(config, "layer_types"):
        return list(config.layer_types)
    has_window = getattr(config, "sliding_window", None) is not None
    kind = "sliding_attention" if has_window else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def kernel_size(config: Any) -> int:
    """Return the tokens that convolutions see, by a text configuration; 0 without such layers."""
    return int(config.conv_L_cache) if CONVOLUTION in layer_types(config) else 0


def local_attention(layer_type: str, config: Any) -> LocalAttention:
    """Return the limits of the layers of a type, one of `LAYER_TYPES`."""
    if layer_type == "sliding_attention":
        return LocalAttention(window=int(config.sliding_window))
    if layer_type == "chunked_attention":
        return LocalAttention(chunk=int(config.attention_chunk_size))
    return LocalAttention()


class MaskBuilder:
    """Builder of additive attention masks, which all attention implementations support.

    Windows count positions, so nodes of the same depth see equally far back.

    Args:
        config: The model's text configuration.
        dtype: The dtype of the queries, which attention kernels require of a mask.
        group: Number of query heads that share a row of the mask (see `attend_packed`).
    """

    def __init__(self, config: Any, dtype: torch.dtype, group: int = 1) -> None:
        # The rule by which transformers decides whether a model takes one mask or one per type.
        self._by_layer_type = hasattr(config, "layer_types")
        kinds = sorted({*layer_types(config)} - {CONVOLUTION})
        self._has_convolutions = kernel_size(config) > 0
        self._limits = {kind: local_attention(kind, config) for kind in kinds}
        self._hidden = max(torch.finfo(dtype).min, _HIDDEN)
        self._dtype = dtype
        self._group = group
        self.has_windows = any(map(any, self._limits.values()))

    def build(self, visible: Tensor, depths: Tensor, lengths: Tensor, end: int) -> Masks:
        """Return the mask `(num_rows, 1, group * width, end)`, or one for each layer type.

        The host reads shapes only, so that a CUDA graph can record this.

        Args:
            visible: bool `(num_rows, width, width)`, the tokens of its row that each token sees.
            depths: int64 `(num_rows, width)`, distances of the tokens from the row's length.
            lengths: int64 `(num_rows,)`, committed tokens; the row's states follow them.
            end: Slots that the mask covers.
        """
        num_rows, width = depths.shape
        positions, slots = lengths[:, None] + depths, torch.arange(end, device=depths.device)
        places = (lengths[:, None] + slots[:width])[:, None].expand_as(visible)
        masks: dict[str, Any] = {CONVOLUTION: None} if self._has_convolutions else {}
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
