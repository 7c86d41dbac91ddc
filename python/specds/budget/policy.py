"""How many nodes of a draft are verified: so many in each step, or what pays by the clock.

So which nodes are verified depends on the clock, and what is emitted does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from math import ceil, inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

from specds._core import DraftSession, TokenTree, draft_batch
from specds.budget.best_size import best_size, best_sizes, worth_of
from specds.budget.experience import Experience, experience_of
from specds.budget.step_cost import MOST_NODES
from specds.drafters.session import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds.budget.best_size import Worth
    from specds.budget.experience import Trust
    from specds.budget.step_cost import CostModel
    from specds.drafters.session import Drafter, Session

# At first so many nodes are drafted: more where they may pay.
_LEAST_LOOK = 8
# Of how many rows one is asked for a draft where drafts have not proved to pay.
_PROBE = 8
_EMPTY = TokenTree([], [])


class Budget(Protocol):
    """Drafts for the sequences of a step; `record` tells what came of it."""

    def prepare(self) -> None:
        """Comes before every draft; it may take a while to measure what a step costs."""
        ...

    def num_asked(self, num_rows: int) -> int:
        """How many of so many sequences the next step drafts for, the first ones: often all.

        Other sessions need not have observed what was emitted so far.
        """
        ...

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """Drafts what is to be verified, in one step for all sequences.

        Args:
            sessions: Of the first sequences, as many as `num_asked` says.
            max_depths: How deep a node of each sequence can be and still be emitted.

        Returns:
            For each sequence a tree, or None where there is nothing to verify.
        """
        ...

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Takes what came of a step, when all its work is done.

        Args:
            emitted: The tokens of each sequence; None for one that the step ended: its next tokens
                are not known.
            learning_s: How long its sessions took to learn from it.
        """
        ...

    def limit(self, max_nodes: int) -> None:
        """Drafts no more than that from now on: memory does not hold more."""
        ...

    def step_seconds(self) -> dict[int, float] | None:
        """Seconds of a step by number of nodes verified; None where they were not measured."""
        ...


class FixedBudget:
    """The same number of nodes in every step.

    Args:
        max_nodes: Most nodes of a draft; 0 is plain decoding, without any draft.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes

    def prepare(self) -> None:
        """Needs nothing."""

    def num_asked(self, num_rows: int) -> int:
        """As `Budget.num_asked`: all, or none."""
        return num_rows if self._max_nodes else 0

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """As `Budget.draft`."""
        rows = zip_longest(sessions, max_depths)
        return [
            None if session is None or max_depth <= 0 else self._draft(session, max_depth)
            for session, max_depth in rows
        ]

    def _draft(self, session: Session, max_depth: int) -> TokenTree | None:
        most = self._max_nodes
        return _or_none(within(session.draft(most), most, max_depth))

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Changes nothing."""

    def limit(self, max_nodes: int) -> None:
        """As `Budget.limit`."""
        self._max_nodes = min(self._max_nodes, max_nodes)

    def step_seconds(self) -> None:
        """Nothing was measured."""


@dataclass
class _Drafted:
    """What was drafted for one sequence of a step.

    Attributes:
        session: Drafts.
        max_depth: As for `Budget.draft`.
        worth: Of its tokens (see `worth_of`).
        draft: All that was drafted.
        tree: What of it can be emitted.
        gains: Tokens to expect of its nodes.
        values: What these are worth.
        hope: The most tokens that further nodes can be worth; 0 where there are none.
        size: How many nodes are verified.
    """

    session: Session
    max_depth: int
    worth: Worth
    draft: TokenTree = _EMPTY
    tree: TokenTree = _EMPTY
    gains: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    hope: float = 0.0
    size: int = 0

    def take(self, draft: TokenTree, most: int, trust: Trust) -> None:
        """Takes a draft of at most so many nodes."""
        self.draft, self.tree = draft, within(draft, most, self.max_depth)
        self.gains = trust.gains(self.tree)
        self.values = self.worth.of(self.tree, self.gains)
        self.hope = self.worth.share * trust.hope(self.tree) if len(self.tree) == most else 0.0

    def cut(self) -> TokenTree | None:
        """What is verified; the session is told how much of its draft that is."""
        if len(self.tree) > self.size:
            _tell(self.session, "cut", _num_before(self.draft, self.tree, self.size))
        if self.size == 0:
            return None
        return self.tree if len(self.tree) <= self.size else self.tree.prefix(self.size)


class AutoBudget:
    """Each step verifies as many nodes as pay, and drafts only where drafts pay for themselves.

    Args:
        costs: What steps cost at present.
        experience: What the drafter has been worth so far.
        clock: Seconds since some moment.
        is_ragged: Whether a step of several rows costs what all their nodes do, so that each can
            have its own number; else all have the same.
    """

    def __init__(
        self,
        costs: Callable[[], CostModel],
        experience: Experience,
        clock: Callable[[], float] = perf_counter,
        *,
        is_ragged: bool = False,
    ) -> None:
        self._costs = costs
        self._experience = experience
        self._clock = clock
        self._is_ragged = is_ragged
        self._cost: CostModel | None = None
        self._max_nodes = MOST_NODES
        self._pauses = not experience.is_time_to_draft()
        self._rows: list[_Drafted] = []
        self._num_rows = 0
        # By which the step costs: nodes of each row, or where rows are ragged their mean.
        self._num_nodes = 0.0
        # What is expected of them, in tokens of a row.
        self._expected = 0.0
        self._first_look = _LEAST_LOOK
        self._learning_s = 0.0

    def prepare(self) -> None:
        """As `Budget.prepare`."""
        if not self._pauses:
            self._cost = self._costs()

    def num_asked(self, num_rows: int) -> int:
        """As `Budget.num_asked`: a few, where drafts have not proved to pay."""
        if self._pauses:
            return 0
        return num_rows if self._experience.pays else ceil(num_rows / _PROBE)

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """As `Budget.draft`."""
        self._rows, self._num_rows, self._num_nodes = [], len(max_depths), 0.0
        trees: list[TokenTree | None] = [None] * len(max_depths)
        if self._cost is not None and not self._pauses and max(max_depths) > 0:
            drafted = zip(sessions, max_depths, worth_of(max_depths), strict=False)
            self._rows = [_Drafted(*row) for row in drafted]
            trees[: len(sessions)] = self._draft(self._cost)
        # Decided now, so that all that is done until then can count on it.
        self._pauses = not self._experience.is_time_to_draft()
        self._start = self._clock()
        return trees

    def _draft(self, cost: CostModel) -> list[TokenTree | None]:
        start = self._clock()
        for row in self._rows:
            # A draft is worth tokens of its own row, and all rows wait for it.
            _tell(row.session, "pace", cost.seconds(0) / self._num_rows)
        # What drafts by other models is not asked twice.
        is_soon_done = all(hasattr(row.session, "draft_until") for row in self._rows)
        most = min(self._first_look, self._max_nodes) if is_soon_done else self._max_nodes
        profit = self._look(cost, self._rows, most)
        while most < self._max_nodes and (rows := self._worth_a_look(cost, most, profit)):
            most = min(4 * most, self._max_nodes)
            profit = self._look(cost, rows, most)
        trees = [row.cut() for row in self._rows]
        # Steps are like the one before: half of what is drafted then is left over.
        self._first_look = max(2 * ceil(self._num_nodes), _LEAST_LOOK)
        # What the model predicted is told, and learned, only where it will be drafted from.
        seconds = self._clock() - start + self._learning_s
        seconds = self._experience.draft_time(seconds * self._num_rows / len(self._rows))
        shortfall = (1.0 - self._experience.kept) * self._expected
        self._experience.judge(profit - shortfall - seconds / cost.seconds(0))
        return trees

    def _look(self, cost: CostModel, rows: Sequence[_Drafted], most: int) -> float:
        """Drafts so many nodes of some rows, and chooses how many are verified of each.

        Returns:
            What these gain, as `_choose` does.
        """
        trust = self._experience.trust
        # What is less likely seldom pays, wherever it stands.
        least = min(cost.least_worth / trust.most, 1.0)
        drafts = _draft_all([row.session for row in rows], least, most)
        for row, draft in zip(rows, drafts, strict=True):
            row.take(draft, most, trust)
        values = [row.values for row in self._rows]
        return self._choose(values, cost.relative(max(map(len, values))))

    def _choose(self, values: list[list[float]], costs: list[float]) -> float:
        """Chooses how many nodes of each row are verified.

        Returns:
            What they gain; where only a few rows were asked, what they would if all were like them.
        """
        unasked = self._num_rows - len(values)
        if self._has_own_sizes:
            sizes, judged = best_sizes(values, costs)
            if unasked:
                sizes, _ = best_sizes([*values, *[[]] * unasked], costs)
            self._num_nodes = sum(sizes) / self._num_rows
        else:
            size, judged = best_size(values, costs)
            # A row that was not asked would be padded.
            self._num_nodes = 0 if unasked else size
            sizes = [int(self._num_nodes)] * len(values)
        for row, size in zip(self._rows, sizes, strict=False):
            row.size = size
        self._expected = judged.tokens
        return judged.profit

    @property
    def _has_own_sizes(self) -> bool:
        return self._is_ragged and self._num_rows > 1

    def _worth_a_look(self, cost: CostModel, most: int, profit: float) -> list[_Drafted]:
        """The rows of which more than `most` nodes might pay, were each as likely as the last."""
        rows, plain = self._rows, cost.seconds(0)
        start = self._num_nodes if self._has_own_sizes else most
        rate = 1.0 + profit * plain / cost.seconds(self._num_nodes)
        # Between the numbers that were measured the curve is straight: the best is one of these.
        further = [(size, costs) for size, costs in cost.curve().items() if size > start]
        if self._has_own_sizes:
            slopes = ((costs - cost.seconds(start)) / (size - start) for size, costs in further)
            least = rate * min(slopes, default=inf) / plain
            return [row for row in rows if row.hope > least]
        known = sum(sum(row.values) for row in rows)
        hope = sum(row.hope for row in rows)
        pays = any(
            1.0 + (known + (size - most) * hope) / len(rows) > rate * costs / plain
            for size, costs in further
        )
        return rows if pays else []

    def limit(self, max_nodes: int) -> None:
        """As `Budget.limit`."""
        self._max_nodes = min(self._max_nodes, max_nodes)

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """As `Budget.record`."""
        if self._cost is None or not self._rows:
            return
        self._learning_s = learning_s
        self._cost.record(self._num_nodes, self._clock() - self._start)
        for row, tokens in zip(self._rows, emitted, strict=False):
            if len(row.tree) and tokens is not None:
                if row.size:
                    self._experience.verified(sum(row.gains[: row.size]), len(tokens) - 1)
                self._experience.trust.learn(row.tree, row.size, tokens)

    def step_seconds(self) -> dict[int, float] | None:
        """As `Budget.step_seconds`."""
        return None if self._cost is None else self._cost.curve()


def _draft_all(sessions: Sequence[Session], min_gain: float, max_nodes: int) -> list[TokenTree]:
    """As `_draft_until` for each; sessions of the core at the same time."""
    if len(sessions) > 1 and all(isinstance(session, DraftSession) for session in sessions):
        return draft_batch(cast("Sequence[DraftSession]", sessions), max_nodes, min_gain=min_gain)
    return [_draft_until(session, min_gain, max_nodes) for session in sessions]


def _draft_until(session: Session, min_gain: float, max_nodes: int) -> TokenTree:
    """What a session drafts of that probability or more, or all where it cannot tell."""
    draft_until: Any = getattr(session, "draft_until", None)
    tree: TokenTree = (
        session.draft(max_nodes) if draft_until is None else draft_until(min_gain, max_nodes)
    )
    return tree


def _num_before(draft: TokenTree, tree: TokenTree, num_nodes: int) -> int:
    """How many nodes of a draft come before all but the first so many of what is left of it."""
    if len(draft) == len(tree) or num_nodes == 0:
        return num_nodes
    left = np.flatnonzero(draft.depths() <= tree.depths().max())
    return 1 + int(left[num_nodes - 1])


def _tell(session: Session, what: str, number: float) -> None:
    """Tells a session what it can make use of, such as how much of its draft is verified."""
    method: Any = getattr(session, what, None)
    if method is not None:
        method(number)


def _or_none(tree: TokenTree) -> TokenTree | None:
    return tree if len(tree) else None


def make_budget(
    budget: int | Literal["auto"],
    drafter: Drafter,
    costs: Callable[[], CostModel],
    *,
    is_ragged: bool = False,
) -> Budget:
    """The budget of a request.

    Args:
        budget: A number of nodes, or `auto`.
        drafter: What drafts.
        costs: What steps cost at present; measured when it is first called.
        is_ragged: As for `AutoBudget`.
    """
    if budget == "auto":
        return AutoBudget(costs, experience_of(drafter), is_ragged=is_ragged)
    return FixedBudget(budget)


def require_budget(budget: int | Literal["auto"]) -> None:
    """Refuses what is no budget.

    Raises:
        ValueError: It is neither `auto` nor a number of nodes.
    """
    is_number = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget != "auto" and not is_number:
        raise ValueError(f"budget must be 'auto' or a number of nodes from 0 on, got {budget!r}")
