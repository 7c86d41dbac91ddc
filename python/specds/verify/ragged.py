"""How do rows of different numbers of tokens share a pass, none padded to the width of another?

Layers that look at one token at a time see all tokens one after the other. Attention takes the
first few of each row together, and what some rows have beyond these row by row: a call by itself
costs as much as some tokens, and padding costs a token each.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from specds.verify.attention import attend_packed, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds.verify.batch_inputs import Inputs
    from specds.verify.masks import DeviceMasks

# What attention to the tokens of one row by themselves costs, in padded tokens: 40 us against 7 of
# 6 layers' ones (5 million parameters, 300 slots, 2 threads).
_OF_A_CALL = 6


class Further(NamedTuple):
    """What a row has beyond the tokens that all rows are given room for.

    Attributes:
        row: Its number.
        tokens: Where they are among all tokens of the pass.
        places: Where they are in the row.
    """

    row: int
    tokens: slice
    places: slice


class RaggedLayout:
    """Where the tokens of each row are among all.

    Args:
        sizes: Tokens of each row, at least 1.
        width: Places of each row in the inputs.
    """

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        self.common_width = _common_width(sizes)
        starts = [0, *accumulate(sizes)]
        places: list[int] = []  # of each token in the inputs
        common: list[int] = []  # the token at each common place; the row's first where it has fewer
        order: list[int] = []  # of each token among all that was attended: common, then further
        self.further: list[Further] = []
        beyond = len(sizes) * self.common_width
        for row, (start, size) in enumerate(zip(starts, sizes, strict=False)):
            places += range(row * width, row * width + size)
            num_common = min(size, self.common_width)
            common += range(start, start + num_common)
            common += [start] * (self.common_width - num_common)
            first = row * self.common_width
            order += range(first, first + num_common)
            if size > num_common:
                tokens = slice(start + num_common, start + size)
                self.further.append(Further(row, tokens, slice(num_common, size)))
                order += range(beyond, beyond + size - num_common)
                beyond += size - num_common
        self.places, self.common = torch.tensor(places), torch.tensor(common)
        self.order = torch.tensor(order)
        self.rows = self.places // width


def _common_width(sizes: Sequence[int]) -> int:
    """How many tokens of each row attend together, so that all of it costs least."""

    def cost(width: int) -> int:
        beyond = [size - width for size in sizes if size > width]
        return len(sizes) * width + sum(beyond) + _OF_A_CALL * len(beyond)

    return min(sorted(set(sizes)), key=cost)


class RaggedMask(NamedTuple):
    """Who sees whom, of the tokens of one layout.

    Attributes:
        layout: Where the tokens are.
        common: As `attend_packed` takes it, for the common places.
        further: The same for what each of `layout.further` is.
    """

    layout: RaggedLayout
    common: torch.Tensor
    further: list[torch.Tensor]

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """As `attend_packed`, for queries `(1, num_heads, num_tokens, head_dim)` in their order."""
        layout = self.layout

        def attend(rows: slice, queries: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen = rows, slice(None), slice(mask.shape[-1])
            return attend_packed(module, queries, key[seen], value[seen], mask, scaling)[0]

        parts = [attend(slice(None), query.index_select(2, layout.common), self.common)]
        for (row, tokens, _), mask in zip(layout.further, self.further, strict=True):
            parts.append(attend(slice(row, row + 1), query[:, :, tokens], mask))
        return torch.cat(parts, dim=1).index_select(1, layout.order)


def ragged_masks(
    masks: DeviceMasks,
    layout: RaggedLayout,
    inputs: Inputs,
    positions: torch.Tensor,
    group: int,
) -> dict[str, RaggedMask]:
    """The mask of each layer type.

    Args:
        masks: Makes them.
        layout: Where the tokens are.
        inputs: Of the pass, padded.
        positions: int64 `(num_rows, width)`.
        group: Query heads per head of the keys.
    """
    lengths = inputs.lengths.tolist()
    # A token sees none that stands behind it in its row.
    end = max(lengths) + layout.common_width
    seeing = slice(layout.common_width)
    common = masks.build(inputs.visible, positions, inputs.lengths, end, seeing)
    further = []
    for row, _, places in layout.further:
        of_row = slice(row, row + 1)
        own_end = lengths[row] + places.stop
        own = inputs.visible[of_row], positions[of_row], inputs.lengths[of_row], own_end, places
        further.append(masks.build(*own))
    return {
        kind: RaggedMask(
            layout, packed(mask, group), [packed(of_row[kind], group) for of_row in further]
        )
        for kind, mask in common.items()
    }
