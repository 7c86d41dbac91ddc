"""How many nodes of some drafts make a step that emits the most tokens a second?

A step that verifies the first k nodes of its draft emits on average g(k) = 1 plus their
probabilities, and costs c(k). Each step takes the k of the most tokens a second, g(k) / c(k); k = 0
is a choice like any other.

A gain could also be compared with the tokens a second of all steps, g(k) - s c(k), which is best
where one step says nothing of the next. But what is hard to draft comes in runs: there a token that
is skipped would not have been followed by easier ones.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# By how much a step is to be better than a plain one.
_MARGIN = 0.03


def best_size(gains: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, float]:
    """How many nodes of each of some trees to verify in one step, the same number of all.

    A tree of fewer nodes is verified whole: a row of a batch is padded to the longest.

    Args:
        gains: For each tree the tokens to expect of its nodes, as `Trust.gains` gives them.
        costs: What a step costs by number of nodes, in plain steps; that of 0 is 1.

    Returns:
        The number, and the tokens to expect of these nodes, for each tree on average. Both are 0
        where the gain is below what expectations and costs can be relied on for.
    """
    total, best, best_tokens = 0.0, 0, 1.0
    sums = gains[0] if len(gains) == 1 else map(sum, zip_longest(*gains, fillvalue=0.0))
    for size, of_nodes in enumerate(sums, start=1):
        total += of_nodes
        tokens = 1.0 + total / len(gains)
        if tokens * costs[best] > best_tokens * costs[size]:
            best, best_tokens = size, tokens
    if best_tokens < (1.0 + _MARGIN) * costs[best]:
        return 0, 0.0
    return best, best_tokens - 1.0
