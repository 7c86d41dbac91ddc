"""Which tokens see which: the attention mask of one forward pass over a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from specds._core import TokenTree

    FirstVisible = Callable[[Any], Any]


def first_visible(layer_type: str, config: Any) -> FirstVisible | None:
    """How far back the layers of one type see: the first visible position of each query position.

    It takes and gives an array or a tensor; what is visible may begin below 0. None for full
    attention.

    Raises:
        ValueError: `layer_type` is none of full, sliding and chunked attention.
    """
    if layer_type == "full_attention":
        return None
    if layer_type == "sliding_attention":
        window = int(config.sliding_window)
        return lambda positions: positions - window + 1
    if layer_type == "chunked_attention":
        chunk = int(config.attention_chunk_size)
        return lambda positions: positions // chunk * chunk
    raise ValueError(f"layer type {layer_type!r} has no tree mask")


class MaskBuilder:
    """Makes the attention masks of a pass from tensors, where these are.

    The masks are additive, in the model's dtype: the one form that every attention implementation
    reads alike. Windows are by position, so that two nodes of one depth see equally far back.

    Args:
        config: The model's text configuration.
        dtype: Dtype of the model's activations.
    """

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        # The rule by which transformers decides whether a model takes one mask or one per type.
        self._by_layer_type = hasattr(config, "layer_types")
        self._first = {
            layer_type: first_visible(layer_type, config)
            for layer_type in sorted(set(layer_types(config)))
        }
        self._dtype = dtype
        # Finite with what is added to it, also in a part of the slots that is hidden altogether.
        self._hidden = max(torch.finfo(dtype).min, -1e9)

    @property
    def has_windows(self) -> bool:
        """Whether some layer does not see all that came before."""
        return any(first is not None for first in self._first.values())

    def build(
        self,
        visible: torch.Tensor,
        positions: torch.Tensor,
        lengths: torch.Tensor,
        end: int,
    ) -> dict[str, torch.Tensor]:
        """The mask of each layer type, `(num_rows, 1, width, end)`.

        There is no branch on what is in the tensors and no copy from the host, so that a CUDA graph
        can hold it.

        Args:
            visible: bool `(num_rows, width, width)`, which tokens of its row each one sees.
            positions: int64 `(num_rows, width)`.
            lengths: int64 `(num_rows,)`, committed tokens, behind which the row's states are.
            end: Slots that are seen or hidden.
        """
        num_rows, width = positions.shape
        slots = torch.arange(end, device=positions.device)
        places = slots - lengths[:, None]
        of_prefix = places < 0
        # Slots behind the pass fall on the column added here, which no token sees.
        nodes = places.clamp(0, width)[:, None]
        padded = torch.nn.functional.pad(visible, (0, 1))
        seen = padded.gather(2, nodes.expand(num_rows, width, end)) | of_prefix[:, None]
        at_nodes = torch.nn.functional.pad(positions, (0, 1)).gather(1, nodes[:, 0])
        at_slots = torch.where(of_prefix, slots, at_nodes)[:, None]
        masks = {}
        for layer_type, first in self._first.items():
            near = seen
            if first is not None:
                near = seen & (at_slots >= first(positions)[:, :, None])
            mask = torch.zeros(near.shape, dtype=self._dtype, device=near.device)
            masks[layer_type] = mask.masked_fill_(~near, self._hidden)[:, None]
        return masks

    def of_row(
        self, visible: torch.Tensor, depths: torch.Tensor, length: int, group: int = 1
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """The masks of a single row behind `length` committed tokens, in the model's form.

        Without windows it takes a fifth of the time of `build`.

        Args:
            visible: bool `(1, width, width)`, which tokens of the pass each one sees.
            depths: int64 `(1, width)`, how far each is from position `length`.
            length: Committed tokens.
            group: Query heads per head of the keys, as for `packed`.
        """
        width, end = visible.shape[-1], length + visible.shape[-1]
        if self.has_windows:
            lengths = torch.full((1,), length, device=visible.device)
            masks = self.build(visible, length + depths, lengths, end)
            return self.as_argument({kind: packed(mask, group) for kind, mask in masks.items()})
        mask = torch.zeros((group, width, end), dtype=self._dtype, device=visible.device)
        mask[..., length:].masked_fill_(~visible, self._hidden)
        return self.as_argument(dict.fromkeys(self._first, mask.view(1, 1, -1, end)))

    def as_argument(self, masks: dict[str, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """`masks` in the form in which the model takes them."""
        return masks if self._by_layer_type else next(iter(masks.values()))


def packed(mask: torch.Tensor, group: int) -> torch.Tensor:
    """A mask `(num_rows, 1, width, num_slots)` for `group` query heads per head of the keys."""
    return mask.repeat(1, 1, group, 1) if group > 1 else mask


def of_tree(tree: TokenTree) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which of a root and its tree see which, the root first, and the depth of each."""
    visible = np.zeros((1 + len(tree),) * 2, dtype=np.bool_)
    visible[:, 0] = True
    visible[1:, 1:] = tree.mask()
    return visible, np.concatenate(([0], tree.depths()))


def layer_types(config: Any) -> list[str]:
    """The attention type of each layer of a text configuration."""
    if hasattr(config, "layer_types"):
        return list(config.layer_types)
    if getattr(config, "sliding_window", None) is not None:
        return ["sliding_attention"] * int(config.num_hidden_layers)
    return ["full_attention"] * int(config.num_hidden_layers)
