"""Which tokens see which: the attention mask of a pass, made from tensors alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    Masks = torch.Tensor | dict[str, torch.Tensor] | None

# Finite with what is added to it, also in a part of the slots that is hidden altogether.
_HIDDEN = -1e9

LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
"""The types of layers that a tree can be verified by."""


class Sight(NamedTuple):
    """How far back a layer sees, by positions; all the way where it has neither.

    Attributes:
        window: A token sees at most this number of last tokens, its own included.
        chunk: Not before the last multiple of this one.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether it sees all that came before."""
        return self == (None, None)


def layer_types(config: Any) -> list[str]:
    """The attention type of each layer of a text configuration."""
    if hasattr(config, "layer_types"):
        return list(config.layer_types)
    has_window = getattr(config, "sliding_window", None) is not None
    kind = "sliding_attention" if has_window else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def sight_of(layer_type: str, config: Any) -> Sight:
    """How far back the layers of a type see.

    Raises:
        ValueError: It is none of `LAYER_TYPES`.
    """
    if layer_type not in LAYER_TYPES:
        raise ValueError(f"layer type {layer_type!r} has no tree mask")
    if layer_type == "sliding_attention":
        return Sight(window=int(config.sliding_window))
    if layer_type == "chunked_attention":
        return Sight(chunk=int(config.attention_chunk_size))
    return Sight()


class MaskBuilder:
    """Makes the attention masks of passes.

    The masks are additive: the one form that every attention implementation reads alike. Windows
    are by position, so that two nodes of one depth see equally far back.

    Args:
        config: The model's text configuration.
        dtype: That of the queries, which is what attention kernels read.
        group: How many query heads share a row of the mask (see `attend_packed`).
    """

    def __init__(self, config: Any, dtype: torch.dtype, group: int = 1) -> None:
        # The rule by which transformers decides whether a model takes one mask or one per type.
        self._by_layer_type = hasattr(config, "layer_types")
        self._sights = {kind: sight_of(kind, config) for kind in sorted({*layer_types(config)})}
        self._hidden = max(torch.finfo(dtype).min, _HIDDEN)
        self._dtype = dtype
        self._group = group
        self.has_windows = not all(sight.is_full for sight in self._sights.values())
        """Whether some layer does not see all that came before."""

    def build(
        self, visible: torch.Tensor, depths: torch.Tensor, lengths: torch.Tensor, end: int
    ) -> Masks:
        """The mask `(num_rows, 1, group * width, end)`, in the form in which the model takes it.

        Nothing depends on what the host knows of the tensors, so that a CUDA graph can hold it.

        Args:
            visible: bool `(num_rows, width, width)`, which tokens of its row each one sees.
            depths: int64 `(num_rows, width)`, how far each is from the row's length.
            lengths: int64 `(num_rows,)`, committed tokens, behind which the row's states are.
            end: Slots that are seen or hidden.
        """
        of_row = lengths[:, None]
        masks = {
            kind: self._of_type(sight, visible, of_row + depths, of_row, end)
            for kind, sight in self._sights.items()
        }
        return masks if self._by_layer_type else next(iter(masks.values()))

    def _of_type(
        self,
        sight: Sight,
        visible: torch.Tensor,
        positions: torch.Tensor,
        lengths: torch.Tensor,
        end: int,
    ) -> torch.Tensor:
        num_rows, width = positions.shape
        slots = torch.arange(end, device=positions.device)
        of_prefix = (slots < lengths)[:, None]
        if not sight.is_full:
            earliest = positions[:, :, None] + 1 - (sight.window or 0)
            if sight.chunk is not None:
                earliest = (positions - positions % sight.chunk)[:, :, None]
            of_prefix = of_prefix & (slots >= earliest)
            visible = visible & (positions[:, None] >= earliest)
        mask = self._added(of_prefix)[:, None].expand(-1, self._group, width, -1).contiguous()
        places = lengths + slots[:width]
        shape = (num_rows, self._group, width, width)
        of_nodes = self._added(visible)[:, None].expand(shape)
        mask.scatter_(3, places[:, None, None].expand(shape), of_nodes)
        return mask.view(num_rows, 1, -1, end)

    def _added(self, seen: torch.Tensor) -> torch.Tensor:
        """What is added to a product: nothing where it is seen."""
        added = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return added.masked_fill_(~seen, self._hidden)
