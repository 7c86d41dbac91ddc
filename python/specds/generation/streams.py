"""What a caller gets and when: of several sequences a token of each, or some tokens at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.generation.streamers import BaseStreamer

from specds.accept.on_host import Emitter


class InStep(BaseStreamer):
    """Gives a streamer the tokens of all sequences step by step, whichever comes to them first.

    Args:
        streamer: Gets int64 `(num_rows,)` at a time.
        padding: What a finished sequence has instead of a token.
    """

    def __init__(self, streamer: BaseStreamer, padding: int) -> None:
        self.rows: list[Emitter] = []
        """All sequences of the request."""
        self._streamer = streamer
        self._padding = padding
        self._num_put = 0

    def put(self, value: torch.Tensor) -> None:
        """Takes note that a sequence has a token more, which is among its emitted ones."""
        lengths = [len(row.emitted) for row in self.rows]
        ahead = [n for row, n in zip(self.rows, lengths, strict=True) if not row.finished]
        for step in range(self._num_put, min(ahead, default=max(lengths))):
            tokens = [
                row.emitted[step] if step < n else self._padding
                for row, n in zip(self.rows, lengths, strict=True)
            ]
            self._num_put += 1
            self._streamer.put(torch.tensor(tokens))  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """The caller ends the streamer itself."""


class Released(BaseStreamer):
    """Gives a streamer its tokens some at a time, however many a step emitted.

    Args:
        streamer: Gets each token, as many at once as `every` says; fewer at the end alone.
        every: How many.
    """

    def __init__(self, streamer: BaseStreamer, every: int) -> None:
        self._streamer = streamer
        self._every = every
        self._held: list[torch.Tensor] = []

    def put(self, value: torch.Tensor) -> None:
        """Holds a token back until there are enough of them."""
        self._held.append(value)
        if len(self._held) == self._every:
            self._release()

    def end(self) -> None:
        """Releases what is held back, and ends the streamer."""
        self._release()
        self._streamer.end()  # type: ignore[no-untyped-call]

    def _release(self) -> None:
        for value in self._held:
            self._streamer.put(value)  # type: ignore[no-untyped-call]
        self._held.clear()


def in_step(rows: Sequence[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """The scores of each step, `(num_rows, vocab_size)`; of a finished sequence they are zeros.

    Args:
        rows: For each sequence, the scores `(1, vocab_size)` of each of its tokens.
    """
    steps = range(max(map(len, rows)))
    nothing = torch.zeros_like(rows[0][0])
    return tuple(
        torch.cat([row[step] if step < len(row) else nothing for row in rows]) for step in steps
    )
