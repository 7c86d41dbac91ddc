"""Sampling of tokens: by the random numbers of the baseline, or close to a drafter's proposal."""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from specds._core import draw as draw_by_uniforms
from specds.drafters.session import Proposal
from specds.generation.noise import DRAWING, BatchNoise


class Noise(BatchNoise):
    """The random numbers that `torch.multinomial` would draw in each step of the baseline.

    `torch.multinomial` returns the argmax of ``probs / noise``, with exponential noise
    `(num_rows, vocab_size)` from the device's default generator. The numbers depend on the seed
    alone and not on drafts. The text is then as independent of drafts as the logits are: up to
    rounding, which in half precision depends on the width of a forward pass, the slots that it
    sees, and the slots of the draft.

    Args:
        num_rows: Rows of the request.
        vocab_size: Size of the model's vocabulary.
        device: The device of the logits.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        super().__init__()
        self._shape = num_rows, vocab_size
        self._device = device
        self._generator = torch.default_generator
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generator = torch.cuda.default_generators[index]

    def sample(self) -> Tensor:
        drawn = torch.empty(self._shape, device=self._device)
        return drawn.exponential_(generator=self._generator)

    @property
    def state(self) -> Tensor:
        return self._generator.get_state()

    @state.setter
    def state(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def draws_for(
        self, rows: Sequence[int], positions: Sequence[int], nums: Sequence[int]
    ) -> Tensor:
        shape = len(rows), max(nums), self._shape[1]
        ahead = torch.empty(shape, device=self._device)
        ends = [first + num for first, num in zip(positions, nums, strict=True)]
        # Positions in the outer loop: a draw that is not stored is drawn again once, for all rows.
        for position in range(min(positions), max(ends)):
            asking = [i for i, end in enumerate(ends) if positions[i] <= position < end]
            drawn = self.draw_at(position) if asking else None
            for i in asking:
                ahead[i, position - positions[i]] = drawn[rows[i]]  # type: ignore[index]
        return ahead


def draw(probs: Tensor) -> int:
    """Return the token that `torch.multinomial` draws from `probs`.

    Args:
        probs: Probabilities, `(vocab_size,)` or `(1, vocab_size)`.

    Raises:
        RuntimeError: All probabilities are 0, or one is infinite or not a number.
    """
    is_usual = probs.device.type == "cpu" and probs.dtype == torch.float32
    if is_usual and _are_of_uniforms():
        # The arithmetic of `multinomial`, without the checks that take most of its time.
        uniforms = torch.empty(probs.numel(), dtype=torch.float64).uniform_()
        token = draw_by_uniforms(probs.flatten().numpy(), uniforms.numpy())
        return draw_by(probs.flatten(), _exponentials(uniforms)) if token is None else token
    with DRAWING:
        return int(torch.multinomial(probs, num_samples=1))


def draw_by(probs: Tensor, noise: Tensor) -> int:
    """Return the token that `torch.multinomial` draws from `probs` with this noise.

    Both have the shape `(vocab_size,)`.
    """
    odds = probs / noise
    token = int(odds.argmax())
    if 0 < odds[token] < math.inf:
        return token
    with DRAWING:
        return int(torch.multinomial(probs, num_samples=1))


def _exponentials(uniforms: Tensor) -> Tensor:
    return uniforms.neg().log1p_().neg_().float()


@cache
def _are_of_uniforms() -> bool:
    """Return whether `exponential_` transforms uniform numbers on this CPU; some builds do not."""
    theirs, ours = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = torch.empty(4096).exponential_(generator=theirs)
    found = _exponentials(torch.empty(4096, dtype=torch.float64).uniform_(generator=ours))
    return torch.equal(theirs.get_state(), ours.get_state()) and torch.equal(expected, found)


def happens(probability: float) -> bool:
    return float(torch.rand(())) < probability


def accept_or_redraw(probs: Tensor, proposal: Proposal) -> int:
    """Return a sample of `probs` `(vocab_size,)` that equals the proposal as often as possible.

    With p for `probs` and q for the proposal's distribution, the proposal is accepted with
    probability p / q. After a rejection the sample is drawn from max(0, p - q), normalized
    (Leviathan et al. 2023). For every q the result is distributed as p.
    """
    token = proposal.token_id
    accepted, proposed = probs[token].item(), proposal.probs[token].item()
    if happens(min(1.0, accepted / proposed)):
        return token
    residual = (probs - proposal.probs.to(probs.device)).clamp_(min=0)
    # If p equals q, only rounding rejects, and the residual is then 0.
    return draw(residual if float(residual.sum()) > 0 else probs)
