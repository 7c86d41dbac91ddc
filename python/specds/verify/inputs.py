"""What does a pass take: the last tokens of some sequences and their drafts, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from specds._core import pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds._core import TokenTree


class Inputs(NamedTuple):
    """The last tokens of some rows and their drafts; what pads a row sees itself alone, unseen.

    Attributes:
        token_ids: int64 `(num_rows, width)`.
        depths: int64 `(num_rows, width)`, how far a token is from the last one.
        parents: int64 `(num_rows, width)`, places in the row; the last token is its own.
        lengths: int64 `(num_rows,)`, committed tokens.
        ancestors: int64 `(num_rows, width, num_words)`, which tokens of its row each one sees: bit
            ``i % 64`` of word ``i // 64`` is the token at place `i`.
        numbers: int64 `(size,)`, the memory of all of these, so that one copy moves them.
    """

    token_ids: torch.Tensor
    depths: torch.Tensor
    parents: torch.Tensor
    lengths: torch.Tensor
    ancestors: torch.Tensor
    numbers: torch.Tensor

    @classmethod
    def on_host(cls, num_rows: int, width: int, *, pinned: bool = False) -> Inputs:
        """Memory of the host, not written to yet; `pinned`: a device can copy from it by itself."""
        size = num_rows * (width * (3 + -(-width // 64)) + 1)
        numbers = torch.empty(size, dtype=torch.int64, pin_memory=pinned, device="cpu")
        return cls._of(numbers, num_rows, width)

    @classmethod
    def _of(cls, numbers: torch.Tensor, num_rows: int, width: int) -> Inputs:
        num_tokens = num_rows * width
        tokens, depths, parents = numbers[: 3 * num_tokens].view(3, num_rows, width)
        lengths = numbers[3 * num_tokens :][:num_rows]
        ancestors = numbers[3 * num_tokens + num_rows :].view(num_rows, width, -1)
        return cls(tokens, depths, parents, lengths, ancestors, numbers)

    def to(self, device: torch.device) -> Inputs:
        """A copy on a device."""
        return self._of(self.numbers.to(device, copy=True), *self.token_ids.shape)

    def visible(self) -> torch.Tensor:
        """`ancestors` as bool `(num_rows, width, width)`."""
        bits = torch.arange(64, device=self.ancestors.device)
        seen = (self.ancestors[..., None] >> bits) & 1
        return seen.flatten(2)[..., : self.ancestors.shape[1]].bool()

    def fill(
        self,
        token_ids: Sequence[int],
        trees: Sequence[TokenTree | None],
        lengths: Sequence[int],
    ) -> None:
        """Writes rows into what lies in the host's memory; rows that are left are padding."""
        pack_rows(self.numbers.numpy(), self.token_ids.shape[1], token_ids, trees, lengths)
