"""How is a sampled token accepted: rejection sampling, as one draw that often equals it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Proposal:
    """A drafted token and the distribution that it was sampled from.

    Attributes:
        token_id: The token.
        probs: float `(vocab_size,)`, the distribution, as really sampled from.
    """

    token_id: int
    probs: torch.Tensor


def draw(probs: torch.Tensor) -> int:
    """One sample of `probs`, `(vocab_size,)` or `(1, vocab_size)`, which need not sum to one.

    It is what `torch.multinomial` draws, with the same random numbers.

    Raises:
        RuntimeError: There is nothing to draw from, or a probability is infinite or not a number.
    """
    if probs.device.type == "cpu":
        # What `multinomial` computes between its tests, which take as long as all this does.
        are_ours = _are_of_uniforms()
        times = _exponentials(probs) if are_ours else torch.empty_like(probs).exponential_()
        odds = torch.div(probs, times, out=times).flatten().numpy()
        token = int(odds.argmax())
        if 0 < odds[token] < math.inf:
            return token
    return int(torch.multinomial(probs, num_samples=1))


def _exponentials(like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """What `exponential_` draws on the CPU of uniform numbers, in less than half the time."""
    times = torch.empty_like(like, dtype=torch.float64).uniform_(generator=generator)
    return times.neg_().log1p_().neg_().to(like.dtype)


@cache
def _are_of_uniforms() -> bool:
    """Whether torch draws an exponential number of each uniform one, as its own code does.

    A build with another library's generator would draw other numbers, and the same seed another
    text than that of `model.generate`.
    """
    theirs, ours = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = torch.empty(4096).exponential_(generator=theirs)
    found = _exponentials(expected, ours)
    return torch.equal(theirs.get_state(), ours.get_state()) and torch.equal(expected, found)


def happens(probability: float) -> bool:
    """True with this probability."""
    return float(torch.rand(())) < probability


def accept_or_redraw(probs: torch.Tensor, proposal: Proposal) -> int:
    """A sample of `probs` that equals the proposal as often as that is possible.

    The proposal is accepted with p / q; after a rejection the sample is of max(0, p - q),
    normalised (Leviathan et al. 2023). Whatever q was, the result is distributed as `probs`, so
    that a walk down a tree treats it as any other draw: where another branch holds the token that
    was drawn after a rejection, the walk goes on there.

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
