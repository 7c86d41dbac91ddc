"""What does a level hand up: a token tree, and for sampled tokens the distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE, Proposal
from specds.drafters.watched import right_path
from specds.stats import LevelStats


class Threshold:
    """Above which entropy a level is unsure: the mean of its rejected tokens', 0 at first."""

    def __init__(self) -> None:
        self.value = 0.0
        self._num_rejected = 0

    def add(self, entropy: float) -> None:
        self._num_rejected += 1
        self.value += (entropy - self.value) / self._num_rejected


@dataclass(frozen=True)
class Drawn:
    """A token that a level chose, and the distribution that it chose from."""

    token_id: int
    probs: torch.Tensor
    prob: float
    entropy: float

    @classmethod
    def of(cls, token_id: int, probs: torch.Tensor) -> Drawn:
        figures = torch.stack((probs[token_id], torch.special.entr(probs).sum()))
        prob, entropy = figures.tolist()  # one wait for the device
        return cls(token_id, probs, prob, entropy)


@dataclass(frozen=True)
class Draft:
    """Tokens for the level above, or for the target, to verify.

    Attributes:
        tree: The tokens: those that a model chose are a chain.
        chosen: The tokens that a model chose, in the order of the text; none if retrieved.
        samples: Whether they were sampled.
        threshold: That of the level that chose them; it learns from rejected tokens.
        stats: Where accepted tokens are counted.
    """

    tree: TokenTree = EMPTY_TREE
    chosen: Sequence[Drawn] = ()
    samples: bool = False
    threshold: Threshold = field(default_factory=Threshold)
    stats: LevelStats = field(default_factory=LevelStats)

    @classmethod
    def of_chain(
        cls, chosen: Sequence[Drawn], samples: bool, threshold: Threshold, stats: LevelStats
    ) -> Draft:
        """The tokens that a model chose, as a tree of one path."""
        tokens = [drawn.token_id for drawn in chosen]
        probs = np.cumprod([min(drawn.prob, 1.0) for drawn in chosen])
        tree = TokenTree(tokens, range(-1, len(tokens) - 1), probs) if tokens else EMPTY_TREE
        return cls(tree, chosen, samples, threshold, stats)

    @property
    def proposals(self) -> dict[int, Proposal]:
        """The sampled tokens by the node that they follow."""
        if not self.samples:
            return {}
        return {
            place - 1: Proposal(drawn.token_id, drawn.probs)
            for place, drawn in enumerate(self.chosen)
        }

    def settle(self, tokens: Sequence[int]) -> None:
        """Counts what was accepted of it above, and learns from the first rejected token."""
        if not self.chosen:
            self.stats.num_accepted += len(right_path(self.tree, tokens))
        for drawn, token in zip(self.chosen, tokens, strict=False):
            if drawn.token_id != token:
                self.threshold.add(drawn.entropy)
                return
            self.stats.num_accepted += 1
