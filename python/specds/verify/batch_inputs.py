"""What does a pass take: the last tokens of some sequences and their drafts, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from specds.verify.masks import of_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds._core import TokenTree


class Inputs(NamedTuple):
    """The last tokens of some rows and their drafts, each row padded to the width of the widest.

    A padding token sees itself alone, and no other token sees it.

    Attributes:
        token_ids: int64 `(num_rows, width)`.
        depths: int64 `(num_rows, width)`, how far a token is from the last one.
        parents: int64 `(num_rows, width)`, places in the row; the last token is its own.
        forced: int64 `(num_rows, width)`, what is chosen after a place whatever the logits say; -1
            for the target's own choice.
        lengths: int64 `(num_rows,)`, committed tokens.
        visible: bool `(num_rows, width, width)`, which tokens of its row each one sees.
        numbers: int64 `(size,)`, the memory of all of these, so that one copy moves them.
    """

    token_ids: torch.Tensor
    depths: torch.Tensor
    parents: torch.Tensor
    forced: torch.Tensor
    lengths: torch.Tensor
    visible: torch.Tensor
    numbers: torch.Tensor

    @staticmethod
    def size(num_rows: int, width: int) -> int:
        """How many int64 numbers hold them."""
        return num_rows * (4 * width + 1) + -(-num_rows * width * width // 8)

    @classmethod
    def of(cls, numbers: torch.Tensor, num_rows: int, width: int) -> Inputs:
        """Views of `numbers`, which hold nothing yet or the inputs of a pass of this shape."""
        num_tokens = num_rows * width
        tokens, depths, parents, forced = numbers[: 4 * num_tokens].view(4, num_rows, width)
        lengths = numbers[4 * num_tokens :][:num_rows]
        visible = numbers[4 * num_tokens + num_rows :].view(torch.bool)[: num_tokens * width]
        visible = visible.view(num_rows, width, width)
        return cls(tokens, depths, parents, forced, lengths, visible, numbers)

    @classmethod
    def on_host(cls, num_rows: int, width: int, *, pinned: bool = False) -> Inputs:
        """Memory of the host, not written to yet; `pinned`: a device can copy from it by itself."""
        size = cls.size(num_rows, width)
        numbers = torch.empty(size, dtype=torch.int64, pin_memory=pinned)
        return cls.of(numbers, num_rows, width)

    def on(self, device: torch.device) -> Inputs:
        """The inputs on a device, moved by one copy; on the CPU, these."""
        if device.type == "cpu":
            return self
        return Inputs.of(self.numbers.to(device), *self.token_ids.shape)

    def fill(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree | None],
        lengths: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> None:
        """Writes rows into what lies in the host's memory; rows that are left are padding."""
        tokens, depths, parents, forced_at, all_lengths, visible = (
            item.numpy() for item in self[:-1]
        )
        tokens[:] = depths[:] = parents[:] = all_lengths[:] = 0
        forced_at[:] = -1
        all_lengths[: len(lengths)] = lengths
        visible[:] = np.eye(tokens.shape[1], dtype=np.bool_)
        for row, (token_id, tree) in enumerate(zip(token_ids, trees, strict=True)):
            tokens[row, 0] = token_id
            if tree is not None:
                end = 1 + len(tree)
                tokens[row, 1:end] = tree.token_ids
                parents[row, 1:end] = 1 + tree.parents
                visible[row, :end, :end], depths[row, :end] = of_tree(tree)
            if len(forced[row]):
                ahead = np.asarray(forced[row], dtype=np.int64)
                forced_at[row] = np.append(ahead, -1)[np.minimum(depths[row], len(ahead))]
