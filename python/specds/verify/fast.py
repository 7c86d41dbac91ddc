"""How are drafts checked fast: packed attention, many sequences in a pass, nothing made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from specds.verify.attention import group_size, packed
from specds.verify.masks import DeviceMasks, of_tree
from specds.verify.runner import Runner
from specds.verify.twin import twin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from specds._core import TokenTree


class Inputs(NamedTuple):
    """The last tokens of some rows and their drafts, each row padded to the width of the widest.

    A token that pads sees itself alone, and nobody sees it.

    Attributes:
        token_ids: int64 `(num_rows, width)`.
        depths: int64 `(num_rows, width)`, how far a token is from the last one.
        parents: int64 `(num_rows, width)`, places in the row; the last token is its own.
        lengths: int64 `(num_rows,)`, committed tokens.
        visible: bool `(num_rows, width, width)`, who sees whom of its row.
    """

    token_ids: torch.Tensor
    depths: torch.Tensor
    parents: torch.Tensor
    lengths: torch.Tensor
    visible: torch.Tensor

    @staticmethod
    def size(num_rows: int, width: int) -> int:
        """How many int64 numbers hold them."""
        return num_rows * (3 * width + 1) + -(-num_rows * width * width // 8)

    @classmethod
    def of(cls, numbers: torch.Tensor, num_rows: int, width: int) -> Inputs:
        """Views of int64 `(size,)`, so that one copy moves them all to a device."""
        num_tokens = num_rows * width
        token_ids, depths, parents = numbers[: 3 * num_tokens].view(3, num_rows, width)
        lengths = numbers[3 * num_tokens :][:num_rows]
        visible = numbers[3 * num_tokens + num_rows :].view(torch.bool)[: num_tokens * width]
        return cls(token_ids, depths, parents, lengths, visible.view(num_rows, width, width))

    def fill(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree | None],
        lengths: Sequence[int],
    ) -> None:
        """Writes rows into what lies in the host's memory."""
        tokens, depths, parents, all_lengths, visible = (field.numpy() for field in self)
        all_lengths[:] = lengths
        for row, (token_id, tree) in enumerate(zip(token_ids, trees, strict=True)):
            num_nodes = 0 if tree is None else len(tree)
            _fill_padding(tokens[row], depths[row], parents[row], visible[row])
            tokens[row, 0] = token_id
            if tree is not None:
                nodes = slice(1, 1 + num_nodes)
                tokens[row, nodes] = tree.token_ids
                parents[row, nodes] = 1 + tree.parents
                visible[row, : 1 + num_nodes, : 1 + num_nodes], depths[row, : 1 + num_nodes] = (
                    of_tree(tree)
                )


def _fill_padding(
    tokens: NDArray[np.int64],
    depths: NDArray[np.int64],
    parents: NDArray[np.int64],
    visible: NDArray[np.bool_],
) -> None:
    tokens[:] = depths[:] = parents[:] = 0
    visible[:] = np.eye(len(tokens), dtype=np.bool_)


class FastRunner(Runner):
    """`Runner` for several rows at once, with an attention that reads each prefix once.

    The model sees the rows as one sequence: only the attention and the cache know whose a token is.
    A row of its own length has no padding before it, and one that is finished costs no more.
    """

    takes_rows = True

    def __init__(self, model: PreTrainedModel, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._twin = twin_of(model)
        self._group = group_size(self._config)
        self._device_masks = DeviceMasks(self._config, model.dtype)

    def verify(self, token_id: int, tree: TokenTree | None) -> torch.Tensor:
        """As `Runner.verify`."""
        return self.verify_rows([token_id], [tree])[0]

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree | None]
    ) -> list[torch.Tensor]:
        """As `Runner.verify_rows`."""
        num_nodes = [0 if tree is None else len(tree) for tree in trees]
        num_rows, width = len(trees), 1 + max(num_nodes)
        numbers = torch.empty(Inputs.size(num_rows, width), dtype=torch.int64)
        Inputs.of(numbers, num_rows, width).fill(token_ids, trees, self.cache.lengths)
        inputs = Inputs.of(numbers.to(self._model.device), num_rows, width)
        logits = self._pass(inputs, max(self.cache.lengths) + width)
        return [row[: 1 + count] for row, count in zip(logits, num_nodes, strict=True)]

    def commit(self, path: Sequence[int]) -> None:
        """As `Runner.commit`."""
        self.commit_rows([path])

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        """As `Runner.commit_rows`."""
        for row, path in enumerate(paths):
            self.cache.use_row(row)
            super().commit(path)

    def _pass(self, inputs: Inputs, end: int) -> torch.Tensor:
        """Logits `(num_rows, width, vocab_size)` of rows that see their first `end` slots."""
        num_rows, width = inputs.token_ids.shape
        positions = inputs.lengths[:, None] + inputs.depths
        if num_rows == 1:
            self.cache.use_row(0)
        else:
            slots = inputs.lengths[:, None] + torch.arange(width, device=positions.device)
            self.cache.place_rows(slots, end)
        mask = None
        # A single token sees all that there is, which attention does faster without a mask.
        if num_rows > 1 or width > 1 or self._device_masks.has_windows:
            masks = self._device_masks.build(inputs.visible, positions, inputs.lengths, end)
            masks = {name: packed(found, self._group) for name, found in masks.items()}
            mask = self._device_masks.as_argument(masks)
        logits = self._forward(
            inputs.token_ids.view(1, -1), positions.view(1, -1), mask, model=self._twin
        )
        return logits.view(num_rows, width, -1)
