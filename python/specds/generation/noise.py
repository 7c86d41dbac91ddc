"""The random numbers of a batch of samples, which depend on the seed alone and not on drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Lock
from typing import Any

# Maximum bytes of random numbers that are stored for rows that lag behind others. Others are drawn
# again, from the generator's state before them.
_MAX_BYTES = 256e6

DRAWING = Lock()
"""Held while a CUDA graph is recorded: for all threads, a device draws nothing meanwhile."""


class BatchNoise(ABC):
    """The random numbers of each step of the baseline, `(num_rows, vocab_size)`.

    A row at position t (its first emitted token is at 0) takes its row of draw t.
    """

    def __init__(self) -> None:
        # The generator's state before each draw that a row may still need.
        self._states: dict[int, Any] = {}
        # The stored draws.
        self._drawn: dict[int, Any] = {}
        self._num_draws = 0

    @abstractmethod
    def sample(self) -> Any:
        """Draw for all rows, `(num_rows, vocab_size)`."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """The state of the generator."""

    @state.setter
    @abstractmethod
    def state(self, state: Any) -> None: ...

    def draw_at(self, position: int) -> Any:
        """Return the draw of a position, `(num_rows, vocab_size)`."""
        with DRAWING:
            drawn = self._drawn.get(position)
            while self._num_draws <= position:
                self._states[self._num_draws] = self.state
                drawn = self._draw(self._num_draws)
                self._num_draws += 1
            if drawn is None:
                now = self.state
                self.state = self._states[position]
                drawn = self._draw(position)
                self.state = now
            return drawn

    def _draw(self, position: int) -> Any:
        drawn = self.sample()
        # Each step needs all stored draws, row after row, so a full store evicts none.
        if not self._drawn or (len(self._drawn) + 1) * drawn.nbytes <= _MAX_BYTES:
            self._drawn[position] = drawn
        return drawn

    def draws_for(self, rows: Sequence[int], positions: Sequence[int], nums: Sequence[int]) -> Any:
        """Return the draws for the next tokens of some rows, where a runner accepts.

        Args:
            rows: Numbers of the rows in the request.
            positions: The next position of each row.
            nums: Draws of each row.

        Returns:
            float32 `(len(rows), max(nums), vocab_size)`, undefined after the draws of a row.
        """
        raise NotImplementedError

    def drop_before(self, position: int) -> None:
        """Drop the draws before a position that all rows have reached."""
        for stored in (self._drawn, self._states):
            for passed in [known for known in stored if known < position]:
                del stored[passed]

    def close(self, num_positions: int) -> None:
        """Leave the generator as the baseline would after this number of tokens."""
        if num_positions in self._states:
            self.state = self._states[num_positions]
        self._drawn.clear()
