"""How is a sampled token accepted: rejection sampling, as one draw that often equals it."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from specds._core import draw as draw_by_uniforms

if TYPE_CHECKING:
    from specds.drafters.session import Proposal


def draw(probs: torch.Tensor) -> int:
    """One sample of `probs`, `(vocab_size,)` or `(1, vocab_size)`, which need not sum to one.

    It is what `torch.multinomial` draws, with the same random numbers.

    Raises:
        RuntimeError: There is nothing to draw from, or a probability is infinite or not a number.
    """
    is_usual = probs.device.type == "cpu" and probs.dtype == torch.float32
    if is_usual and _are_of_uniforms():
        # What `multinomial` computes between its tests, which take longer than all this does.
        uniforms = torch.empty(probs.numel(), dtype=torch.float64).uniform_()
        token = draw_by_uniforms(probs.flatten().numpy(), uniforms.numpy())
        return draw_by(probs.flatten(), _exponentials(uniforms)) if token is None else token
    return int(torch.multinomial(probs, num_samples=1))


def draw_by(probs: torch.Tensor, noise: torch.Tensor) -> int:
    """The sample of `probs`, `(vocab_size,)`, that `torch.multinomial` draws by exponential noise.

    Raises:
        RuntimeError: As of `draw`.
    """
    odds = probs / noise
    token = int(odds.argmax())
    return token if 0 < odds[token] < math.inf else int(torch.multinomial(probs, num_samples=1))


def _exponentials(uniforms: torch.Tensor) -> torch.Tensor:
    """What `exponential_` makes of its random numbers on the CPU, in single precision."""
    return uniforms.neg().log1p_().neg_().float()


@cache
def _are_of_uniforms() -> bool:
    """Whether torch draws an exponential number of each uniform one, as its own code does.

    A build with another library's generator would draw other numbers, and the same seed another
    text than that of `model.generate`.
    """
    theirs, ours = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = torch.empty(4096).exponential_(generator=theirs)
    found = _exponentials(torch.empty(4096, dtype=torch.float64).uniform_(generator=ours))
    return torch.equal(theirs.get_state(), ours.get_state()) and torch.equal(expected, found)


def happens(probability: float) -> bool:
    """True with this probability."""
    return float(torch.rand(())) < probability


def accept_or_redraw(probs: torch.Tensor, proposal: Proposal) -> int:
    """A sample of `probs` that equals the proposal as often as that is possible.

    The proposal is accepted with p / q; after a rejection the sample is of max(0, p - q),
    normalised (Leviathan et al. 2023). Whatever q was, the result is distributed as `probs`, so
    that a walk down a tree treats it as any other draw.

    Args:
        probs: `(vocab_size,)`, the distribution p to sample from.
        proposal: A token sampled from its own distribution q, whatever came of earlier draws.
    """
    token = proposal.token_id
    accepted, proposed = probs[token].item(), proposal.probs[token].item()
    if happens(min(1.0, accepted / proposed)):
        return token
    residual = (probs - proposal.probs.to(probs.device)).clamp_(min=0)
    # Only rounding rejects where p equals q, and then leaves nothing to draw from.
    return draw(residual if float(residual.sum()) > 0 else probs)
