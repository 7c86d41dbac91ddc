"""Who may see whom: the attention mask of one forward pass over a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specds.verify.cache import round_up

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


class _LayerTypeMask:
    """The additive mask of one layer type, kept between steps.

    Of the prefix's columns a step writes only the new ones and the band where the windows of the
    nodes end; the rest is as the step before left it.
    """

    def __init__(self, first: FirstVisible | None, options: dict[str, Any]) -> None:
        self._first = first
        self._options = options
        self._hidden = torch.finfo(options["dtype"]).min
        self._allocate(0, 0)

    def _allocate(self, num_rows: int, num_columns: int) -> None:
        shape = (round_up(num_rows), round_up(num_columns))
        self._rows = torch.zeros(shape, **self._options)
        # Columns before `_length` are prefix and written; of these, all rows are blind to those
        # before the band and see those after it.
        self._length = 0
        self._band = (0, 0)

    def build(
        self, visible: NDArray[np.bool_], positions: NDArray[np.int64], length: int
    ) -> torch.Tensor:
        num_nodes = len(positions)
        end = length + num_nodes
        num_rows, num_columns = self._rows.shape
        if num_nodes > num_rows or end > num_columns:
            self._allocate(max(num_rows, num_nodes), max(num_columns, 2 * end))
        self._rows[:, self._length : length] = 0
        self._length = length
        if self._first is not None:
            first = self._first(positions)
            visible = visible & (positions >= first[:, None])
            self._write_band(first, length)
        block = self._rows[:num_nodes, length:end]
        shown = torch.from_numpy(visible).to(block.device)
        block.fill_(self._hidden).masked_fill_(shown, 0)
        return self._rows[None, None, :num_nodes, :end]

    def _write_band(self, first: NDArray[np.int64], length: int) -> None:
        start, end = (min(max(int(bound), 0), length) for bound in (first.min(), first.max()))
        # Where tokens were rolled back, the band moves back as well.
        self._rows[:, min(start, self._band[0]) : self._band[1]] = 0
        self._rows[:, self._band[0] : start] = self._hidden
        if start < end:
            out_of_window = np.arange(start, end) < first[:, None]
            band = self._rows[: len(first), start:end]
            band.masked_fill_(torch.from_numpy(out_of_window).to(band.device), self._hidden)
        self._band = (start, end)


class MaskBuilder:
    """Builds the masks that a model takes for a draft, in buffers that are reused.

    The masks are additive, in the model's dtype: the one form that every attention implementation
    reads alike. Windows are by position, so that two nodes of one depth see equally far back.

    Args:
        config: The model's text configuration.
        dtype: Dtype of the model's activations.
        device: Device of the model's inputs.
    """

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        options = {"dtype": dtype, "device": device}
        # The rule by which transformers decides whether a model takes one mask or one per type.
        self._by_layer_type = hasattr(config, "layer_types")
        self._masks = {
            layer_type: _LayerTypeMask(first_visible(layer_type, config), options)
            for layer_type in sorted(set(layer_types(config)))
        }

    def build(
        self, visible: NDArray[np.bool_], depths: NDArray[np.int64], length: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """The mask of the tokens of one pass behind `length` committed tokens, all of which count.

        Writes O(tokens * (tokens + commits since the last call)) elements, whatever the length.

        Args:
            visible: bool `(num_tokens, num_tokens)`, whom of the pass each of its tokens may see.
            depths: int64 `(num_tokens,)`, how far each is from position `length`.
            length: Committed tokens.

        Returns:
            `(1, 1, num_tokens, length + num_tokens)`, or one of these per layer type. They are
            views, good until the next call.
        """
        masks = {
            layer_type: mask.build(visible, length + depths, length)
            for layer_type, mask in self._masks.items()
        }
        if self._by_layer_type:
            return masks
        (mask,) = masks.values()
        return mask


class DeviceMasks:
    """Makes the masks of a pass over several rows from tensors alone, where these are.

    There is no branch on what is in the tensors and no copy from the host, so that a CUDA graph can
    hold it. Arguments are those of `MaskBuilder`.
    """

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
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

        Args:
            visible: bool `(num_rows, width, width)`, whom of its row each token of the pass sees.
            positions: int64 `(num_rows, width)`.
            lengths: int64 `(num_rows,)`, committed tokens, behind which the row's states are.
            end: Slots that are seen or hidden.
        """
        num_rows, width = positions.shape
        slots = torch.arange(end, device=positions.device)
        places = slots - lengths[:, None]
        of_prefix = places < 0
        # Slots behind the pass fall on the column added here, which nobody sees.
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

    def of_one_row(
        self, visible: torch.Tensor, end: int, group: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """What `build`, `packed` and `as_argument` give for a row whose pass ends at `end`.

        It takes a fifth of their time, and no layer may have a window.

        Args:
            visible: bool `(1, width, width)`.
            end: Slots, those of the pass included.
            group: Query heads per head of the keys.
        """
        width = visible.shape[-1]
        mask = torch.zeros((group, width, end), dtype=self._dtype, device=visible.device)
        mask[..., end - width :].masked_fill_(~visible, self._hidden)
        return self.as_argument(dict.fromkeys(self._first, mask.view(1, 1, -1, end)))

    def as_argument(self, masks: dict[str, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """`masks` in the form in which the model takes them."""
        return masks if self._by_layer_type else next(iter(masks.values()))


def of_tree(tree: TokenTree) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Who of a root and its tree sees whom, the root first, and the depth of each."""
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
