"""Drafts of a level: a token tree, and the distributions that its tokens were sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE, Proposal
from specds.generation.stats import LevelStats

# Top tokens of a model that are suggested at each node.
_NUM_LIKELY = 4


class Threshold:
    """Entropy above which a level stops: the mean over its rejected tokens, 0 at first."""

    def __init__(self) -> None:
        self.value = 0.0
        self._num_rejected = 0

    def add(self, entropy: float) -> None:
        self._num_rejected += 1
        self.value += (entropy - self.value) / self._num_rejected


@dataclass(frozen=True)
class Drawn:
    """Token that a level chose, and the distribution that it chose from."""

    token_id: int
    probs: torch.Tensor
    prob: float
    entropy: float

    @classmethod
    def of(cls, token_id: int, probs: torch.Tensor) -> Drawn:
        figures = torch.stack((probs[token_id], torch.special.entr(probs).sum()))
        prob, entropy = figures.tolist()  # one synchronization with the device
        return cls(token_id, probs, prob, entropy)


@dataclass(frozen=True)
class Draft:
    """Tokens that the level above, or the target, verifies.

    Attributes:
        tree: The tokens. Its first nodes are `chosen`.
        chosen: Chain of tokens that a model chose; empty for a retrieved tree.
        samples: Whether they were sampled.
        threshold: Threshold of the level, which learns from their rejection.
        stats: Statistics of the level.
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
        tokens = [drawn.token_id for drawn in chosen]
        probs = np.cumprod([min(drawn.prob, 1.0) for drawn in chosen])
        tree = TokenTree(tokens, range(-1, len(tokens) - 1), probs) if tokens else EMPTY_TREE
        return cls(tree, chosen, samples, threshold, stats)

    @property
    def proposals(self) -> dict[int, Proposal]:
        """Return the sampled tokens by the node that they follow."""
        if not self.samples:
            return {}
        return {
            place - 1: Proposal(drawn.token_id, drawn.probs)
            for place, drawn in enumerate(self.chosen)
        }

    def joined_with(self, branches: TokenTree, max_nodes: int) -> Draft:
        """Add the best branches of another draft to this one, up to `max_nodes` nodes.

        Sampled tokens stay first: leaving one out because of its value would bias the result. A
        branch is not a proposal. After a rejection, a token is drawn from the remaining
        distribution, and acceptance follows the branch that holds it.
        """
        tokens, parents = self.tree.token_ids.tolist(), self.tree.parents.tolist()
        probs = self.tree.probs.tolist()
        nodes = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
        # Node in the joined tree of each branch; branches below one that was left out are too.
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
        """Update statistics, and the threshold at the first rejection, from the verified tokens."""
        if not self.chosen:
            self.stats.num_accepted += len(self.tree.follow(tokens))
        for drawn, token in zip(self.chosen, tokens, strict=False):
            if drawn.token_id != token:
                self.threshold.add(drawn.entropy)
                return
            self.stats.num_accepted += 1


def suggestion(probs: torch.Tensor, tree: TokenTree) -> tuple[list[int], list[int], list[float]]:
    """Return a tree with the probabilities of a model, and the model's top tokens as siblings.

    Args:
        probs: Next-token probabilities after the context and each node, `(1 + n, vocab_size)`.

    Returns:
        Ids, parents, and the probability of each token after its parent.
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
    numbers: dict[tuple[int, int], int] = {}  # index in the result, by node and token
    found: list[tuple[int, int, float]] = []
    for node, row in enumerate(rows, start=-1):
        number = -1 if node < 0 else numbers[parents[node], drafted[node]]
        for token, prob in row.items():
            numbers[node, token] = len(found)
            found.append((token, number, min(prob, 1.0)))
    ids, above, shares = zip(*found, strict=True)
    return [*ids], [*above], [*shares]
