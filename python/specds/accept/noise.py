"""The random numbers of samples: by row and position, whatever is drafted and however it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of drawn numbers that rows behind have still to use; beyond this they are drawn again.
_MOST_BYTES = 256e6


class Noise:
    """What `torch.multinomial` would draw in each step of plain decoding, step by step.

    It samples the argmax of ``probs / noise`` with exponential noise `(num_rows, vocab_size)`. A
    row that is at position t, the first emitted token being at 0, takes its row of draw t: so a
    sampled text depends on model, prompts and seed alone, and not on what was drafted.

    The default generator of the device where scores are processed draws.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = num_rows, vocab_size
        self._device = device
        self._generator = torch.default_generator
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generator = torch.cuda.default_generators[index]
        # The generator before each draw, and the draws that are kept.
        self._states: list[torch.Tensor] = []
        self._drawn: dict[int, torch.Tensor] = {}

    def at(self, position: int) -> torch.Tensor:
        """The draw of a position, float32 `(num_rows, vocab_size)`."""
        while len(self._states) <= position:
            self._states.append(self._generator.get_state())
            self._keep(len(self._states) - 1)
        if position not in self._drawn:
            now = self._generator.get_state()
            self._generator.set_state(self._states[position])
            self._keep(position)
            self._generator.set_state(now)
        return self._drawn[position]

    def _keep(self, position: int) -> None:
        drawn = torch.empty(self._shape, device=self._device)
        drawn.exponential_(generator=self._generator)
        while self._drawn and (len(self._drawn) + 1) * drawn.nbytes > _MOST_BYTES:
            self._drawn.pop(next(iter(self._drawn)))
        self._drawn[position] = drawn

    def close(self, num_positions: int) -> None:
        """Leaves the generator as plain decoding of this number of tokens would."""
        if len(self._states) > num_positions:
            self._generator.set_state(self._states[num_positions])
        self._drawn.clear()

    def ahead(self, rows: Sequence[int], positions: Sequence[int], num: int) -> torch.Tensor:
        """What the next `num` tokens of rows at some positions may need, by row and token."""
        places = zip(rows, positions, strict=True)
        drawn = [[self.at(first + i)[row] for i in range(num)] for row, first in places]
        return torch.stack([torch.stack(of_row) for of_row in drawn])
