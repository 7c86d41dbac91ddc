"""How many nodes of a draft to verify: a fixed number, or as many as pay by the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from time import perf_counter
from typing import Literal, cast

from specds._core import DraftSession, Session, TokenTree, draft_batch
from specds.budget.experience import Experience
from specds.budget.step_cost import MOST_NODES, CostModel
from specds.drafters.session import EMPTY_TREE

# A step must promise to be better than a plain one by this share.
_MARGIN = 0.03


class Budget:
    """Drafts for the sequences of a step; the base class drafts at most `max_nodes` in each.

    Attributes:
        pauses: Whether the next step drafts nothing, so that sessions need no predictions for it.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self.pauses = max_nodes == 0

    def prepare(self) -> None:
        """To be called before every draft; it may measure what a step costs, which takes long."""

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        """The tree to verify for each session, no deeper than its entry in `max_depths`."""
        most = self._max_nodes
        return [
            session.draft(most, depth).limited(most, depth) if most and depth > 0 else EMPTY_TREE
            for session, depth in zip(sessions, max_depths, strict=True)
        ]

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Takes the tokens of each sequence in a step, None for one that ended.

        `learning_s` is the time of the sessions' `observe`.
        """

    def learn(self) -> None:
        """Learns from what was recorded, once the device has its next work."""


class AutoBudget(Budget):
    """Each step verifies as many nodes as pay, and drafts only where drafts pay for themselves."""

    def __init__(
        self,
        costs: Callable[[], CostModel],
        experience: Experience,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._costs = costs
        self._experience = experience
        self._clock = clock
        self._cost: CostModel | None = None
        self.pauses = not experience.is_time_to_draft()
        self._learning_s = 0.0
        self._outcomes: list[tuple[TokenTree, int, Sequence[int]]] = []

    def prepare(self) -> None:
        if not self.pauses:
            self._cost = self._costs()

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        self._drafts: list[TokenTree] = []
        self._num_nodes = 0
        if self._cost is not None and not self.pauses and max(max_depths) > 0:
            self._draft(self._cost, sessions, max_depths)
        # Decided now, since what follows this step depends on it.
        self.pauses = not self._experience.is_time_to_draft()
        trees = [tree.limited(self._num_nodes) for tree in self._drafts]
        return trees or [EMPTY_TREE] * len(sessions)

    def _draft(
        self, cost: CostModel, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> None:
        start = self._clock()
        for session in sessions:
            # A draft gains tokens for its own row alone, and all rows wait for it.
            session.set_step_time(cost.seconds[0] / len(sessions))
        # Less likely nodes seldom pay, whatever their rank.
        least = min(cost.least_worth / self._experience.most_trust, 1.0)
        drafts = zip(_draft_all(sessions, max_depths, least), max_depths, strict=True)
        self._drafts = [tree.limited(MOST_NODES, depth) for tree, depth in drafts]
        gains = [self._experience.gains(tree) for tree in self._drafts]
        self._num_nodes, expected = best_size(gains, cost.relative)
        # Sessions learn only if they draft in the next step, so this is a cost of drafting.
        seconds = self._experience.draft_time(self._clock() - start + self._learning_s)
        profit = 1.0 + expected - cost.relative[self._num_nodes]
        self._experience.judge(profit - seconds / cost.seconds[0])

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        if self._drafts:
            self._learning_s = learning_s
        self._outcomes = [
            (tree, self._num_nodes, tokens)
            for tree, tokens in zip(self._drafts, emitted, strict=False)
            if tree and tokens is not None
        ]

    def learn(self) -> None:
        for outcome in self._outcomes:
            self._experience.learn(*outcome)
        self._outcomes = []


def best_size(gains: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, float]:
    """The number of nodes of each tree that gives the most tokens a second.

    Args:
        gains: For each tree the tokens to expect of its nodes.
        costs: The cost of a step by number of nodes, in plain steps.

    Returns:
        The number, and the tokens to expect of these nodes, for each tree on average. Both are 0
        where the gain is within the errors of expectations and costs.
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


def _draft_all(
    sessions: Sequence[Session], max_depths: Sequence[int], min_gain: float
) -> list[TokenTree]:
    """Drafts for each row, in parallel if all sessions are the core's."""
    if len(sessions) > 1 and all(isinstance(session, DraftSession) for session in sessions):
        of_core = cast("list[DraftSession]", [*sessions])
        return draft_batch(of_core, MOST_NODES, max_depths=[*max_depths], min_gain=min_gain)
    rows = zip(sessions, max_depths, strict=True)
    return [session.draft(MOST_NODES, depth, min_gain) for session, depth in rows]


def require_budget(budget: int | Literal["auto"]) -> None:
    """Raises a ValueError if a budget is neither `auto` nor a number of nodes."""
    is_number = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget != "auto" and not is_number:
        raise ValueError(f"budget must be 'auto' or a number of nodes from 0 on, got {budget!r}")
