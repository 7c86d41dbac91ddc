"""How many nodes of a draft are verified: a number in each step, or what pays by the clock?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from time import perf_counter
from typing import Literal, cast

from specds._core import DraftSession, TokenTree, draft_batch
from specds.budget.experience import Experience
from specds.budget.step_cost import MOST_NODES, CostModel
from specds.drafters.session import EMPTY_TREE, Session, within

# By how much a step is to be better than a plain one.
_MARGIN = 0.03


class Budget:
    """Drafts for the sequences of a step, and learns what came of it: here as many nodes in each.

    Args:
        max_nodes: Most nodes of a draft; 0 is plain decoding, without any draft.

    Attributes:
        pauses: The next step drafts nothing: sessions then need not have observed anything.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self.pauses = max_nodes == 0

    def prepare(self) -> None:
        """Comes before every draft; it may take a while to measure what a step costs."""

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        """What is to be verified of each sequence.

        `max_depths` are how deep a node of each can be and still be emitted.
        """
        most = self._max_nodes
        return [
            within(session.draft(most, depth), most, depth) if most and depth > 0 else EMPTY_TREE
            for session, depth in zip(sessions, max_depths, strict=True)
        ]

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Takes what came of a step: the tokens of each sequence, None for one that it ended.

        Sessions took `learning_s` to learn from it.
        """

    def learn(self) -> None:
        """Learns from what was recorded; to be called once a device has its next work."""


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
        """As `Budget.prepare`."""
        if not self.pauses:
            self._cost = self._costs()

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        """As `Budget.draft`."""
        # What was drafted by row, and what of it is verified: of a row that has fewer, pads.
        self._drafts: list[TokenTree] = []
        self._num_nodes = 0
        if self._cost is not None and not self.pauses and max(max_depths) > 0:
            self._draft(self._cost, sessions, max_depths)
        # Decided now, so that all that is done until then can count on it.
        self.pauses = not self._experience.is_time_to_draft()
        size = self._num_nodes
        trees = [tree if len(tree) <= size else tree.prefix(size) for tree in self._drafts]
        return trees or [EMPTY_TREE] * len(sessions)

    def _draft(
        self, cost: CostModel, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> None:
        start = self._clock()
        for session in sessions:
            # A draft is worth tokens of its own row, and all rows wait for it.
            session.set_step_time(cost.seconds[0] / len(sessions))
        # What is less likely seldom pays, wherever it stands.
        least = min(cost.least_worth / self._experience.most_trust, 1.0)
        drafts = zip(_draft_all(sessions, max_depths, least), max_depths, strict=True)
        self._drafts = [within(tree, MOST_NODES, depth) for tree, depth in drafts]
        gains = [self._experience.gains(tree) for tree in self._drafts]
        self._num_nodes, expected = best_size(gains, cost.relative)
        # Sessions get the model's predictions, and learn, only where they draft in the next step.
        seconds = self._experience.draft_time(self._clock() - start + self._learning_s)
        profit = 1.0 + expected - cost.relative[self._num_nodes]
        self._experience.judge(profit - seconds / cost.seconds[0])

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """As `Budget.record`."""
        if self._drafts:
            self._learning_s = learning_s
        self._outcomes = [
            (tree, self._num_nodes, tokens)
            for tree, tokens in zip(self._drafts, emitted, strict=False)
            if tree and tokens is not None
        ]

    def learn(self) -> None:
        """As `Budget.learn`."""
        for outcome in self._outcomes:
            self._experience.learn(*outcome)
        self._outcomes = []


def best_size(gains: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, float]:
    """How many nodes of each tree to verify in a step: those of the most tokens a second.

    Args:
        gains: For each tree the tokens to expect of its nodes.
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


def _draft_all(
    sessions: Sequence[Session], max_depths: Sequence[int], min_gain: float
) -> list[TokenTree]:
    """Drafts for each row; for sessions of the core at the same time."""
    if len(sessions) > 1 and all(isinstance(session, DraftSession) for session in sessions):
        of_core = cast("list[DraftSession]", [*sessions])
        return draft_batch(of_core, MOST_NODES, max_depths=[*max_depths], min_gain=min_gain)
    rows = zip(sessions, max_depths, strict=True)
    return [session.draft(MOST_NODES, depth, min_gain) for session, depth in rows]


def require_budget(budget: int | Literal["auto"]) -> None:
    """Raises a ValueError for what is neither `auto` nor a number of nodes."""
    is_number = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget != "auto" and not is_number:
        raise ValueError(f"budget must be 'auto' or a number of nodes from 0 on, got {budget!r}")
