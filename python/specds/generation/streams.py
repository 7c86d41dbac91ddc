"""Streaming of a batch: one token of each row at a time, or a fixed number at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from specds.generation.acceptance import Emits

if TYPE_CHECKING:
    import torch


class BatchStreamer:
    """Pass a streamer one token of each row, int64 `(num_rows,)`, as soon as all rows have it.

    Args:
        streamer: Receives the tokens.
        padding: The token of finished rows.
        every: Steps that it receives at once; fewer only at the end.
        tensor: Makes what it receives of a list.

    Attributes:
        rows: All rows of the request.
    """

    def __init__(
        self, streamer: Any, padding: int, every: int, tensor: Callable[[list[int]], Any]
    ) -> None:
        self.rows: list[Emits] = []
        self._tensor = tensor
        self._streamer = streamer
        self._padding = padding
        self._every = every
        self._num_steps = 0
        self._held: list[Any] = []

    def put(self, value: Any) -> None:
        """Handle a token that a row has emitted."""
        lengths = [len(row.emitted) for row in self.rows]
        ahead = [n for row, n in zip(self.rows, lengths, strict=True) if not row.finished]
        for step in range(self._num_steps, min(ahead, default=max(lengths))):
            tokens = [
                row.emitted[step] if step < n else self._padding
                for row, n in zip(self.rows, lengths, strict=True)
            ]
            self._num_steps += 1
            self._held.append(self._tensor(tokens))
            if len(self._held) == self._every:
                self._release()

    def end(self) -> None:
        self._release()
        self._streamer.end()

    def _release(self) -> None:
        for tokens in self._held:
            self._streamer.put(tokens)
        self._held.clear()


def stack_steps(rows: Sequence[list[torch.Tensor] | None]) -> tuple[torch.Tensor, ...] | None:
    """Return the scores of each step, `(num_rows, vocab_size)`, zeros for finished rows.

    Args:
        rows: For each row, the scores `(1, vocab_size)` of each token; None if not stored.
    """
    kept = [row for row in rows if row is not None]
    if not kept:
        return None
    steps = range(max(map(len, kept)))
    import torch

    nothing = torch.zeros_like(kept[0][0])
    return tuple(
        torch.cat([row[step] if step < len(row) else nothing for row in kept]) for step in steps
    )
