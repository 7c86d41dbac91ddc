"""What does a level hand up: a token tree, and for tokens that it sampled, from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE, Proposal
from specds.stats import LevelStats

# How many of a model's likeliest tokens are suggested in each place.
_NUM_LIKELY = 4


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
        tree: The tokens. Those that were chosen one after the other are its first nodes.
        chosen: Those, in the order of the text; none where the tree was not chosen, but retrieved.
        samples: Whether they were chosen by chance.
        threshold: What the level that chose them learns from their rejection.
        stats: Where their acceptance is counted.
    """

    tree: TokenTree
    chosen: Sequence[Drawn] = ()
    samples: bool = False
    threshold: Threshold = field(default_factory=Threshold)
    stats: LevelStats = field(default_factory=LevelStats)

    @classmethod
    def of_chain(
        cls, chosen: Sequence[Drawn], samples: bool, threshold: Threshold, stats: LevelStats
    ) -> Draft:
        """The tokens that a level chose, as a tree of one path."""
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

    def joined_with(self, branches: TokenTree, max_nodes: int) -> Draft:
        """This draft and the best of the branches of another, at most `max_nodes` nodes.

        What was sampled stays and stays first: a sampled token may not be left out for what it is.
        A branch is no proposal. A rejection leaves a draw from what remains of the distribution
        above, and the walk follows the branch that holds it.
        """
        tokens, parents = self.tree.token_ids.tolist(), self.tree.parents.tolist()
        probs = self.tree.probs.tolist()
        nodes = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
        # Where in the joined tree each branch is; those that found no place have none below them.
        place = {-1: -1}
        edges = zip(branches.parents.tolist(), branches.token_ids.tolist(), strict=True)
        for branch, (parent, token) in enumerate(edges):
            if parent not in place:
                continue
            edge = (place[parent], token)
            if edge not in nodes and len(tokens) < max_nodes:
                nodes[edge] = len(tokens)
                tokens.append(token)
                parents.append(edge[0])
                probs.append(float(branches.probs[branch]))
            if edge in nodes:
                place[branch] = nodes[edge]
        tree = TokenTree(tokens, parents, probs) if tokens else EMPTY_TREE
        return replace(self, tree=tree)

    def settle(self, tokens: Sequence[int]) -> None:
        """Learns from the tokens that came of it above: a rejected one tells what unsure means."""
        if not self.chosen:
            self.stats.num_accepted += len(self.tree.follow(tokens))
        for drawn, token in zip(self.chosen, tokens, strict=False):
            if drawn.token_id != token:
                self.threshold.add(drawn.entropy)
                return
            self.stats.num_accepted += 1


def suggestion(probs: torch.Tensor, tree: TokenTree) -> tuple[list[int], list[int], list[float]]:
    """A tree with what a model says of it, and the likeliest tokens beside its nodes.

    Args:
        probs: Of the next token after the context, then after each node: `(1 + n, vocab_size)`.

    Returns:
        Ids, parents, and of each token its probability after its parent.
    """
    likely = probs.topk(min(_NUM_LIKELY, probs.shape[1]))
    rows = [
        dict(zip(tokens, of_tokens, strict=True))
        for tokens, of_tokens in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]
    parents, drafted = tree.parents.tolist(), tree.token_ids.tolist()
    of_nodes = probs[[1 + parent for parent in parents], drafted].tolist()
    for parent, token, prob in zip(parents, drafted, of_nodes, strict=True):
        rows[1 + parent].setdefault(token, prob)
    numbers: dict[tuple[int, int], int] = {}  # in the suggestion, by node and token
    found: list[tuple[int, int, float]] = []
    for node, row in enumerate(rows, start=-1):
        number = -1 if node < 0 else numbers[parents[node], drafted[node]]
        for token, prob in row.items():
            numbers[node, token] = len(found)
            found.append((token, number, min(prob, 1.0)))
    ids, above, shares = zip(*found, strict=True)
    return [*ids], [*above], [*shares]
