"""How many nodes of a draft are verified?

A step that verifies the first k nodes of its draft emits on average g(k) = 1 plus their
probabilities, and costs c(k). Each step takes the k of the most tokens a second, g(k) / c(k); k = 0
is a choice like any other. So which nodes are verified depends on the clock, and what is emitted
does not.

A gain could also be held against the tokens a second of all steps, g(k) - s c(k), which is best
where one step says nothing of the next. But what is hard to draft comes in runs: there a token that
is skipped would not have been followed by easier ones.
"""

from __future__ import annotations

from bisect import bisect
from itertools import zip_longest
from math import exp, sqrt
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from specds.drafters.protocol import within
from specds.verify.cost import MOST_NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds._core import TokenTree
    from specds.drafters import Drafter, Session
    from specds.verify.cost import CostModel

# What happened fifty steps ago counts a third.
_KEPT = 0.98
# How many expected tokens it takes until what came of them counts as much as the drafter's word.
_FAITH = 2.0
# What is believed of a drafter that is not known yet: where nodes are cheap they are verified all
# the same, and where they are not, its first tokens tell as much at no cost.
_FIRST_TRUST = 0.3
# Deeper nodes are trusted as the deepest of these.
_DEPTHS = 16
# Drafts are told apart by the probability of their likeliest node.
_SURENESS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
_MOST_TRUST = 2.0
# A row that is ahead of the last one by this many times the root of what that one has left is worth
# a third of it.
_PATIENCE = 0.5
# By how much a step is to be better than a plain one.
_MARGIN = 0.03
# At first so many nodes are drafted: more where they may pay.
_LEAST_LOOK = 8
_AVERAGING = 0.1
_LONGEST_WAIT = 31


class Budget(Protocol):
    """Drafts for the sequences of a step; `record` tells what came of it."""

    def prepare(self) -> None:
        """Comes before every draft; it may take a while to measure what a step costs."""
        ...

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """Drafts for each session what is to be verified, in one step for all of them.

        Args:
            sessions: One for each sequence of the step.
            max_depths: How deep a node of each can be and still be emitted.

        Returns:
            For each session a tree, or None where there is nothing to verify.
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

    @property
    def pauses(self) -> bool:
        """Whether the next step is one of a pause: without drafts, whatever comes of this one.

        Its sessions are asked nothing: they need not have observed what was emitted so far.
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

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """As `Budget.draft`."""
        return [
            self._draft(session, max_depth) if self._max_nodes and max_depth > 0 else None
            for session, max_depth in zip(sessions, max_depths, strict=True)
        ]

    def _draft(self, session: Session, max_depth: int) -> TokenTree | None:
        most = self._max_nodes
        return _or_none(within(session.draft(most), most, max_depth))

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Changes nothing."""

    @property
    def pauses(self) -> bool:
        """As `Budget.pauses`: no step is left out, unless all are."""
        return self._max_nodes == 0

    def limit(self, max_nodes: int) -> None:
        """As `Budget.limit`."""
        self._max_nodes = min(self._max_nodes, max_nodes)

    def step_seconds(self) -> None:
        """Nothing was measured."""


class Trust:
    """What is held of a drafter's probabilities: the share of the tokens promised that came.

    By how sure the drafter is of its likeliest node, since drafters exaggerate both ways, and by
    depth. A depth with little evidence is trusted as the one above it, and the first one as that of
    all drafts, never more than the drafter says. Nodes count whose outcome is sure to be known
    before it is: the verified ones and their children. So a drafter is judged by the first token
    alone while none of its nodes is verified, and can win trust.

    Args:
        first: What is believed of a drafter that is not known yet.
    """

    def __init__(self, first: float = _FIRST_TRUST) -> None:
        # Lists: between two passes of a model, code is seldom in the processor's cache, and the
        # first few calls of numpy take 10 us each.
        rows, size = range(len(_SURENESS) + 1), _DEPTHS + 1
        self._promised = [[0.0] * size for _ in rows]
        self._came = [[0.0] * size for _ in rows]
        # Of the first tokens of all drafts, what was promised and what came.
        self._of_all = [_FAITH, _FAITH * first]
        self._factors = [[first] * size for _ in rows]

    @property
    def most(self) -> float:
        """The largest factor by which a probability may be too small."""
        return max(1.0, *map(max, self._factors))

    def gains(self, tree: TokenTree) -> list[float]:
        """Tokens to expect of each node of a tree."""
        promises = _promises(tree)
        factors = self._factors[_row(promises)]
        nodes = zip(promises, tree.depths().tolist(), strict=True)
        return [promise * factors[min(depth, _DEPTHS)] for promise, depth in nodes]

    def hope(self, tree: TokenTree) -> float:
        """The most tokens to expect of a node that is no likelier than the last of a tree."""
        promises = _promises(tree)
        return min(promises[-1] * max(self._factors[_row(promises)][1:]), 1.0)

    def learn(self, tree: TokenTree, num_verified: int, emitted: Sequence[int]) -> None:
        """Compares a draft, of which the first nodes were verified, with what was emitted."""
        promises = _promises(tree)
        row = _row(promises)
        promised = self._promised[row] = [_KEPT * number for number in self._promised[row]]
        came = self._came[row] = [_KEPT * number for number in self._came[row]]
        first_promised, first_came = (_KEPT * number for number in self._of_all)
        path = _path(tree, emitted)
        nodes = zip(tree.parents.tolist(), tree.depths().tolist(), promises, strict=True)
        for node, (parent, depth, promise) in enumerate(nodes):
            if parent < num_verified:
                promised[min(depth, _DEPTHS)] += promise
                came[min(depth, _DEPTHS)] += node in path
                if parent < 0:
                    first_promised += promise
                    first_came += node in path
        self._of_all = [first_promised, first_came]
        factor = first_came / max(first_promised, first_came) if first_came else 0.0
        factors = [factor]
        for came_here, promised_here in zip(came[1:], promised[1:], strict=True):
            factor = (came_here + _FAITH * factor) / (promised_here + _FAITH)
            factors.append(factor if factor < _MOST_TRUST else _MOST_TRUST)
        for other, of_row in enumerate(self._promised):
            if of_row[1] == 0.0:
                self._factors[other] = factors[:1] * len(factors)
        self._factors[row] = factors


def _row(promises: list[float]) -> int:
    """How sure a drafter is, as a row of what is known of it."""
    return bisect(_SURENESS, max(promises, default=0.0))


def _promises(tree: TokenTree) -> list[float]:
    """The probabilities of a tree; a drafter that gives none is taken to be sure."""
    probs: list[float] = tree.probs.tolist()
    return probs if any(probs) else [1.0] * len(probs)


def _path(tree: TokenTree, emitted: Sequence[int]) -> list[int]:
    """The nodes of a tree along the emitted tokens."""
    edges = zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)
    nodes = {edge: node for node, edge in enumerate(edges)}
    path: list[int] = []
    for token in emitted:
        node = nodes.get((path[-1] if path else -1, token))
        if node is None:
            break
        path.append(node)
    return path


def best_size(gains: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, float]:
    """How many nodes of each of some trees to verify in one step, the same number of all.

    A tree of fewer nodes is verified whole: a row of a batch is padded to the longest.

    Args:
        gains: For each tree the tokens to expect of its nodes, as `Trust.gains` gives them, times
            what a token of its row is worth.
        costs: What a step costs by number of nodes, in plain steps; that of 0 is 1.

    Returns:
        The number, and what each sequence gains over plain decoding in the same time, in tokens;
        0 and 0 where that is less than promises and costs are good for.
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
    return best, best_tokens - costs[best]


def _shares(max_depths: Sequence[int]) -> list[float]:
    """What a token of each row of a batch is worth; 1 on average.

    A batch takes as long as the row that ends last, which is likely to be one that has most left to
    write: by how much that must be told apart grows with what is still to come, as the way of a
    random walk does.
    """
    if len(max_depths) == 1:
        return [1.0]
    most = max(max_depths)
    scale = _PATIENCE * sqrt(most + 1)
    worth = [exp((depth - most) / scale) for depth in max_depths]
    mean = sum(worth) / len(worth)
    return [of_row / mean for of_row in worth]


class Experience:
    """What a drafter has been worth, over all requests that it drafted for.

    Args:
        may_pause: Whether drafts that lose are followed by steps without any.
        trust: In what it promises.
    """

    def __init__(self, *, may_pause: bool = True, trust: Trust | None = None) -> None:
        self.trust = Trust() if trust is None else trust
        self._may_pause = may_pause
        # Tokens that were expected of the nodes verified, and how many came.
        self._expected = self._came = 0.0
        self._worth = 0.0
        self._draft_s: float | None = None
        self._period = self._wait = 0

    def is_time_to_draft(self) -> bool:
        """Whether to draft in a step, which counts as one of a pause where it is not."""
        if self._wait == 0:
            return True
        self._wait -= 1
        return False

    def draft_time(self, seconds: float) -> float:
        """Takes how long a draft took, and returns what one usually takes."""
        usual = seconds if self._draft_s is None else self._draft_s
        # A draft that was interrupted says little of the next one.
        self._draft_s = usual + _AVERAGING * (min(seconds, 3 * usual) - usual)
        return self._draft_s

    def verified(self, expected: float, came: int) -> None:
        """Takes how many tokens were expected of the nodes of a step, and how many came."""
        self._expected = _KEPT * self._expected + expected
        self._came = _KEPT * self._came + came

    @property
    def kept(self) -> float:
        """The share of the tokens expected of verified nodes that came.

        It is below that of all nodes: the nodes verified are those that most was expected of, and
        of some of them it was too much.
        """
        return min((self._came + _FAITH) / (self._expected + _FAITH), 1.0)

    def judge(self, profit: float) -> None:
        """Takes what a draft gained, its own time paid for, in tokens of a sequence.

        While drafts lose on average pauses grow, also where one of them gains a little.
        """
        self._worth += _AVERAGING * (profit - self._worth)
        loses = self._may_pause and self._worth <= 0
        self._period = min(2 * self._period + 1, _LONGEST_WAIT) if loses else 0
        self._wait = self._period


class AutoBudget:
    """Each step verifies as many nodes as pay, and drafts only where drafts pay for themselves.

    Args:
        costs: What steps cost at present.
        experience: What the drafter has been worth so far.
        clock: Seconds since some moment.
    """

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
        self._max_nodes = MOST_NODES
        self._drafts = False
        self._pauses = not experience.is_time_to_draft()
        self._drafted: list[TokenTree | None] = []
        self._gains: list[list[float]] = []
        self._first_look = _LEAST_LOOK
        self._learning_s = 0.0
        # What the nodes drafted gain in all, and each further one at the most.
        self._known = self._hope = 0.0
        self._num_nodes = 0

    def prepare(self) -> None:
        """As `Budget.prepare`."""
        if not self._pauses:
            self._cost = self._costs()

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """As `Budget.draft`."""
        self._drafted, self._num_nodes = [None] * len(sessions), 0
        self._drafts = not self._pauses and max(max_depths) > 0
        if self._cost is not None and self._drafts:
            self._draft(self._cost, sessions, max_depths)
        # Decided now, so that all that is done until then can count on it.
        self._pauses = not self._experience.is_time_to_draft()
        self._start = self._clock()
        return [self._cut(tree) for tree in self._drafted]

    def _draft(
        self, cost: CostModel, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> None:
        start = self._clock()
        for session in sessions:
            _tell(session, "pace", cost.seconds(0))
        # What drafts by other models is not asked twice.
        is_soon_done = all(hasattr(session, "draft_until") for session in sessions)
        most = min(self._first_look, self._max_nodes) if is_soon_done else self._max_nodes
        profit = self._look(cost, sessions, max_depths, most)
        while most < self._max_nodes and self._may_pay(cost, most, profit):
            most = min(4 * most, self._max_nodes)
            profit = self._look(cost, sessions, max_depths, most)
        # Steps are like the one before: half of what is drafted then is left over.
        self._first_look = max(2 * self._num_nodes, _LEAST_LOOK)
        # What the model predicted is told, and learned, only where it will be drafted from.
        seconds = self._experience.draft_time(self._clock() - start + self._learning_s)
        extra = profit + cost.seconds(self._num_nodes) / cost.seconds(0) - 1.0
        shortfall = (1.0 - self._experience.kept) * extra
        self._experience.judge(profit - shortfall - seconds / cost.seconds(0))

    def _look(
        self, cost: CostModel, sessions: Sequence[Session], max_depths: Sequence[int], most: int
    ) -> float:
        """Drafts so many nodes, chooses how many are verified, and returns what these gain."""
        trust = self._experience.trust
        shares = _shares(max_depths)
        # What is less likely seldom pays, wherever it stands.
        least = min(cost.least_worth / trust.most, 1.0)
        drafts = [_draft_until(session, least, most) for session in sessions]
        trees = [
            within(draft, most, max_depth)
            for draft, max_depth in zip(drafts, max_depths, strict=True)
        ]
        self._gains = [trust.gains(tree) for tree in trees]
        gains = [
            [share * gain for gain in of_tree]
            for share, of_tree in zip(shares, self._gains, strict=True)
        ]
        self._num_nodes, profit = best_size(gains, cost.relative(max(map(len, trees))))
        self._known = sum(map(sum, gains))
        self._hope = sum(
            share * trust.hope(tree)
            for share, tree in zip(shares, trees, strict=True)
            if len(tree) == most
        )
        for session, draft, tree in zip(sessions, drafts, trees, strict=True):
            if len(tree) > self._num_nodes:
                _tell(session, "cut", _num_before(draft, tree, self._num_nodes))
        self._drafted = [_or_none(tree) for tree in trees]
        return profit

    def _may_pay(self, cost: CostModel, most: int, profit: float) -> bool:
        """Whether nodes beyond the first `most` might pay, were each as likely as the last."""
        plain = cost.seconds(0)
        rate = 1.0 + profit * plain / cost.seconds(self._num_nodes)
        # Between the numbers that were measured the curve is straight: the best is one of these.
        return any(
            1.0 + (self._known + (size - most) * self._hope) / len(self._drafted)
            > rate * seconds / plain
            for size, seconds in cost.curve().items()
            if size > most
        )

    @property
    def pauses(self) -> bool:
        """As `Budget.pauses`."""
        return self._pauses

    def _cut(self, tree: TokenTree | None) -> TokenTree | None:
        if tree is None or self._num_nodes == 0:
            return None
        return tree if len(tree) <= self._num_nodes else tree.prefix(self._num_nodes)

    def limit(self, max_nodes: int) -> None:
        """As `Budget.limit`."""
        self._max_nodes = min(self._max_nodes, max_nodes)

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """As `Budget.record`."""
        if self._cost is None or not self._drafts:
            return
        self._learning_s = learning_s
        self._cost.record(self._num_nodes, self._clock() - self._start)
        for index, (tree, tokens) in enumerate(zip(self._drafted, emitted, strict=True)):
            if tree is not None and tokens is not None:
                if self._num_nodes:
                    expected = sum(self._gains[index][: self._num_nodes])
                    self._experience.verified(expected, len(tokens) - 1)
                self._experience.trust.learn(tree, self._num_nodes, tokens)

    def step_seconds(self) -> dict[int, float] | None:
        """As `Budget.step_seconds`."""
        return None if self._cost is None else self._cost.curve()


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


_experiences: WeakKeyDictionary[Drafter, Experience] = WeakKeyDictionary()


def experience_of(drafter: Drafter) -> Experience:
    """What a drafter has been worth so far; nothing is known of one that cannot be a key."""
    new = Experience(may_pause=getattr(drafter, "may_pause", True))
    try:
        return _experiences.setdefault(drafter, new)
    except TypeError:
        return new


def make_budget(
    budget: int | Literal["auto"], drafter: Drafter, costs: Callable[[], CostModel]
) -> Budget:
    """The budget of a request.

    Args:
        budget: A number of nodes, or `auto`.
        drafter: What drafts.
        costs: What steps cost at present; measured when it is first called.
    """
    if budget == "auto":
        return AutoBudget(costs, experience_of(drafter))
    return FixedBudget(budget)


def require_budget(budget: int | Literal["auto"]) -> None:
    """Refuses what is no budget.

    Raises:
        ValueError: It is neither `auto` nor a number of nodes.
    """
    is_number = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget != "auto" and not is_number:
        raise ValueError(f"budget must be 'auto' or a number of nodes from 0 on, got {budget!r}")
