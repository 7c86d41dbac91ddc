"""How many nodes of some drafts make a step that emits the most tokens a second?

A step that verifies the first k nodes of its draft emits on average g(k) = 1 plus their
probabilities, and costs c(k). Each step takes the k of the most tokens a second, g(k) / c(k); k = 0
is a choice like any other.

A gain could also be held against the tokens a second of all steps, g(k) - s c(k), which is best
where one step says nothing of the next. But what is hard to draft comes in runs: there a token that
is skipped would not have been followed by easier ones.
"""

from __future__ import annotations

from itertools import zip_longest
from math import exp, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds._core import TokenTree

# By how much a step is to be better than a plain one.
_MARGIN = 0.03
# A row that is ahead of the last one by this many times the root of what that one has left is worth
# a third of it.
_PATIENCE = 0.5


class Judged(NamedTuple):
    """What comes of a number of nodes, for each sequence on average.

    Attributes:
        tokens: Those to expect of the nodes.
        profit: How many more than of plain decoding in the same time.
    """

    tokens: float = 0.0
    profit: float = 0.0


def best_size(gains: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, Judged]:
    """How many nodes of each of some trees to verify in one step, the same number of all.

    A tree of fewer nodes is verified whole: a row of a batch is padded to the longest.

    Args:
        gains: For each tree the tokens to expect of its nodes, as `Trust.gains` gives them, or
            what these are worth.
        costs: What a step costs by number of nodes, in plain steps; that of 0 is 1.

    Returns:
        The number, and what comes of it; 0 and nothing where that is less than promises and costs
        are good for.
    """
    total, best, best_tokens = 0.0, 0, 1.0
    sums = gains[0] if len(gains) == 1 else map(sum, zip_longest(*gains, fillvalue=0.0))
    for size, of_nodes in enumerate(sums, start=1):
        total += of_nodes
        tokens = 1.0 + total / len(gains)
        if tokens * costs[best] > best_tokens * costs[size]:
            best, best_tokens = size, tokens
    if best_tokens < (1.0 + _MARGIN) * costs[best]:
        return 0, Judged()
    return best, Judged(best_tokens - 1.0, best_tokens - costs[best])


def best_sizes(
    gains: Sequence[Sequence[float]], costs: Sequence[float]
) -> tuple[list[int], Judged]:
    """How many nodes of each of some trees to verify in one step that costs what all of them do.

    Nodes are taken in the order of what they gain, from whichever tree, none before its tree's
    earlier ones.

    Args:
        gains: As for `best_size`.
        costs: What a step costs by the mean number of nodes, in plain steps; that of 0 is 1.

    Returns:
        The number of each tree, and what `best_size` returns beside it.
    """
    num_rows, of_nodes = len(gains), np.concatenate([*gains, []])
    none = [0] * num_rows
    if len(of_nodes) == 0:
        return none, Judged()
    # A tree's order is that of its drafter, and trust in deeper nodes may be larger.
    steady = np.concatenate([np.minimum.accumulate(of_tree) for of_tree in gains if of_tree])
    order = np.argsort(-steady, kind="stable")
    tokens = 1.0 + np.cumsum(of_nodes[order]) / num_rows
    means = np.arange(1, len(order) + 1) / num_rows
    cost = np.interp(means, np.arange(len(costs)), costs)
    best = int(np.argmax(tokens / cost))
    if tokens[best] < (1.0 + _MARGIN) * cost[best]:
        return none, Judged()
    rows = np.repeat(np.arange(num_rows), [len(of_tree) for of_tree in gains])
    sizes: list[int] = np.bincount(rows[order[: best + 1]], minlength=num_rows).tolist()
    return sizes, Judged(float(tokens[best] - 1.0), float(tokens[best] - cost[best]))


class Worth(NamedTuple):
    """What the next tokens of a row of a batch are worth.

    Attributes:
        share: The first of them; 1 on average over the rows.
        fade: What each is worth of the one before.
    """

    share: float
    fade: float

    def of(self, tree: TokenTree, gains: Sequence[float]) -> list[float]:
        """What the nodes of a tree are worth, of which so many tokens are expected."""
        if self.fade == 1.0:
            return [self.share * gain for gain in gains]
        depths = zip(tree.depths().tolist(), gains, strict=True)
        return [self.share * self.fade ** (depth - 1) * gain for depth, gain in depths]


def worth_of(max_depths: Sequence[int]) -> list[Worth]:
    """What the tokens of each row of a batch are worth, by how many each has left to write.

    A batch takes as long as the row that ends last, which is likely to be one that has most left to
    write: by how much that must be told apart grows with what is still to come, as the way of a
    random walk does. So a token is worth less the further its row is ahead, and the less the
    further it gets ahead in this step.
    """
    if len(max_depths) == 1:
        return [Worth(1.0, 1.0)]
    most = max(max_depths)
    scale = _PATIENCE * sqrt(most + 1)
    worth = [exp((depth - most) / scale) for depth in max_depths]
    mean = sum(worth) / len(worth)
    return [Worth(of_row / mean, exp(-1 / scale)) for of_row in worth]
