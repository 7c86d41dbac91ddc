"""The number of nodes of a draft to verify: fixed, or by the expected tokens per second."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from time import perf_counter
from typing import Literal, cast
from weakref import WeakKeyDictionary

from specds._core import Budget as Rule
from specds._core import DraftSession, DraftStats, Session, TokenTree, draft_batch
from specds.decoding.step_cost import MOST_NODES, CostModel
from specds.drafters.session import EMPTY_TREE, Drafter


class FixedBudget:
    """Drafts for the sequences of a step; the base class drafts at most `max_nodes` in each.

    Args:
        is_chain: Whether of each tree the best chain is left.

    Attributes:
        pauses: Whether the next step drafts nothing, so that sessions need no predictions for it.
    """

    def __init__(self, max_nodes: int, *, is_chain: bool = False) -> None:
        self._max_nodes, self._is_chain = max_nodes, is_chain
        self.pauses = max_nodes == 0

    def prepare(self) -> None:
        """To be called before every draft; it may measure what a step costs, which takes long."""

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        """The tree to verify for each session, no deeper than its entry in `max_depths`."""
        most = self._max_nodes
        trees = [
            session.draft(most, depth).limited(most, depth) if most and depth > 0 else EMPTY_TREE
            for session, depth in zip(sessions, max_depths, strict=True)
        ]
        return [tree.best_chain() for tree in trees] if self._is_chain else trees

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        """Takes the tokens of each row in a step, None for one that ended, and `observe`'s time."""

    def leave(self, row: int) -> None:
        """Ends a row; the last one takes its number."""


class AutoBudget(FixedBudget):
    """Each step verifies as many nodes as pay, and drafts only where drafts pay for themselves.

    The rule is the core's; here are the sessions and the clock.
    """

    def __init__(
        self,
        costs: Callable[[], CostModel],
        draft_stats: DraftStats,
        num_rows: int = 1,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._costs = costs
        self._rule = Rule(draft_stats, num_rows)
        self._clock = clock
        self._cost: CostModel | None = None
        self._learning_s = 0.0
        self.pauses = False

    def prepare(self) -> None:
        if self.pauses or (cost := self._costs()) is self._cost:
            return
        self._cost = cost
        self._rule.set_costs(cost.seconds)

    def draft(self, sessions: Sequence[Session], max_depths: Sequence[int]) -> list[TokenTree]:
        drafts: list[TokenTree | None] = [None] * len(sessions)
        start = self._clock()
        if self._cost is not None:
            may_draft = zip(self._rule.drafts, max_depths, strict=True)
            chosen = [row for row, (is_due, depth) in enumerate(may_draft) if is_due and depth > 0]
            depths = [max_depths[row] for row in chosen]
            for row in chosen:
                # A draft gains tokens for its own row alone, and all rows wait for it.
                sessions[row].set_step_time(self._cost.seconds[0] / len(sessions))
            made = _draft_all([sessions[row] for row in chosen], depths, self._rule.min_prob)
            for row, depth, tree in zip(chosen, depths, made, strict=True):
                drafts[row] = tree.limited(MOST_NODES, depth)
        # Sessions learn only if they draft in the next step, so this is a cost of drafting.
        seconds = self._clock() - start + self._learning_s
        sizes = self._rule.choose(drafts, seconds)
        # Decided now, since what follows this step depends on it.
        self.pauses = not any(self._rule.drafts)
        pairs = zip(drafts, sizes, strict=True)
        return [EMPTY_TREE if tree is None else tree.limited(size) for tree, size in pairs]

    def record(self, emitted: Sequence[Sequence[int] | None], learning_s: float = 0.0) -> None:
        self._learning_s = learning_s
        self._rule.learn(emitted)

    def leave(self, row: int) -> None:
        self._rule.leave(row)


def known_part(tree: TokenTree, vocab_size: int) -> TokenTree:
    """Return the nodes before the first one whose token the model lacks, with a warning.

    Gemma 3's 1B model lacks the image token of its tokenizer, so a corpus may hold what it lacks.
    """
    known = tree.known(vocab_size)
    if known is not tree:
        unknown = tree.token_ids[len(known)]
        message = f"a draft with token {unknown} is cut there: the model has {vocab_size} tokens"
        warnings.warn(f"{message}; was the drafter made with its tokenizer?", stacklevel=2)
    return known


_draft_stats: WeakKeyDictionary[Drafter, DraftStats] = WeakKeyDictionary()


def draft_stats_of(drafter: Drafter) -> DraftStats:
    """Return the statistics of a drafter, new ones if it has none or cannot be a key."""
    new = DraftStats()
    try:
        return _draft_stats.setdefault(drafter, new)
    except TypeError:
        return new


def _draft_all(
    sessions: Sequence[Session], max_depths: Sequence[int], min_prob: float
) -> list[TokenTree]:
    """Drafts for each row, in parallel if all sessions are the core's."""
    if len(sessions) > 1 and all(isinstance(session, DraftSession) for session in sessions):
        of_core = cast("list[DraftSession]", [*sessions])
        return draft_batch(of_core, MOST_NODES, max_depths=[*max_depths], min_prob=min_prob)
    rows = zip(sessions, max_depths, strict=True)
    return [session.draft(MOST_NODES, depth, min_prob) for session, depth in rows]


def require_max_nodes(max_nodes: int | Literal["auto"]) -> None:
    """Raises a ValueError if `max_nodes` is neither `auto` nor a number of nodes."""
    is_number = isinstance(max_nodes, Integral) and not isinstance(max_nodes, bool)
    if max_nodes != "auto" and not (is_number and max_nodes >= 0):
        raise ValueError(f"max_nodes must be 'auto' or a number from 0 on, got {max_nodes!r}")
