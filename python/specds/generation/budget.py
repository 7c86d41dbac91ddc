"""The number of nodes of a draft to verify: fixed, or by the expected tokens per second."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from time import perf_counter
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from specds._core import (
    DraftSession,
    DraftStats,
    NodeBudget,
    Session,
    StepTimes,
    TokenTree,
    draft_batch,
)
from specds.drafters.session import EMPTY_TREE, Drafter
from specds.generation.runner import Verifier

MAX_NODES = 63
"""Maximum nodes that an automatic budget verifies: with the last token they fill a tile of 64."""

MIN_CHAIN_PROB = 0.1
"""Minimum path probability of a chain node: after a rejection, accepted tokens are fed again."""


class FixedBudget:
    """Drafts of at most `max_nodes` nodes for each sequence of a step.

    Args:
        max_nodes: Maximum nodes of a draft; 0 decodes without drafts.
        vocab_size: The model's vocabulary. A draft ends before a token outside it.
        is_chain: Reduce each tree to its best chain.
        min_prob: The least probability of a path that is drafted.
    """

    def __init__(
        self, max_nodes: int, vocab_size: int, *, is_chain: bool = False, min_prob: float = 0.0
    ) -> None:
        self._max_nodes, self._vocab_size, self._is_chain = max_nodes, vocab_size, is_chain
        self._min_prob = min_prob

    @property
    def backs_off(self) -> bool:
        """True if the next step drafts nothing; sessions then need no predictions."""
        return self._max_nodes == 0

    def draft(
        self,
        sessions: Sequence[Session],
        max_depths: Sequence[int],
        waiting: Sequence[int] = (0,),
    ) -> list[TokenTree]:
        """Return the tree to verify for each session.

        Args:
            max_depths: The maximum depth of each tree.
            waiting: The tokens of each row that are fed again before its tree.
        """
        trees = []
        for session, depth in zip(sessions, max_depths, strict=True):
            drafts = self._max_nodes > 0 and depth > 0
            tree = self._draft(session, depth) if drafts else EMPTY_TREE
            trees.append(self._cut(tree, self._max_nodes, depth))
        return trees

    def _draft(self, session: Session, depth: int) -> TokenTree:
        if self._is_chain and isinstance(session, DraftSession):
            return session.draft(self._max_nodes, depth, self._min_prob, is_chain=True)
        return session.draft(self._max_nodes, depth, self._min_prob)

    def _cut(self, tree: TokenTree, max_nodes: int, max_depth: int) -> TokenTree:
        """Apply all limits of a draft; sessions written in Python may ignore them."""
        if not tree:
            return tree
        tree = known_part(tree.limited(max_nodes, max_depth), self._vocab_size)
        return tree.best_chain() if self._is_chain else tree

    def record(
        self, emitted: Sequence[Sequence[int] | None], step_s: float, learning_s: float = 0.0
    ) -> None:
        """Learn from a step.

        Args:
            emitted: The tokens of each row, None for a row that ended.
            step_s: Seconds of the step without drafting and without `learning_s`.
            learning_s: Seconds of `Session.observe`.
        """

    def join(self) -> None:
        """Add a row, which takes the last number."""

    def leave(self, row: int) -> None:
        """End a row; the last one takes its number."""


class AutoBudget(FixedBudget):
    """The size of each draft by the expected tokens per second; backs off while drafts slow it.

    The core's `NodeBudget` decides. This class calls the sessions and reads the clock. Chains have
    at least `MIN_CHAIN_PROB`.

    Args:
        costs: Measured times of steps, or the seconds of a step by the nodes of each row.
    """

    def __init__(
        self,
        costs: StepTimes | Sequence[float],
        draft_stats: DraftStats,
        vocab_size: int,
        num_rows: int = 1,
        clock: Callable[[], float] = perf_counter,
        *,
        is_chain: bool = False,
    ) -> None:
        min_prob = MIN_CHAIN_PROB if is_chain else 0.0
        super().__init__(MAX_NODES, vocab_size, is_chain=is_chain, min_prob=min_prob)
        self._rule = NodeBudget(draft_stats, costs, num_rows)
        self._clock = clock
        self._learning_s = 0.0

    @property
    def backs_off(self) -> bool:
        return not any(self._rule.drafts)

    def draft(
        self,
        sessions: Sequence[Session],
        max_depths: Sequence[int],
        waiting: Sequence[int] = (0,),
    ) -> list[TokenTree]:
        drafts: list[TokenTree | None] = [None] * len(sessions)
        start = self._clock()
        rows = zip(self._rule.drafts, max_depths, strict=True)
        due = [row for row, (drafts_now, depth) in enumerate(rows) if drafts_now and depth > 0]
        for row in due:
            # A draft gains tokens for its own row alone, and all rows wait for it.
            sessions[row].set_step_time(self._rule.step_s / len(sessions))
        drafting, depths = [sessions[row] for row in due], [max_depths[row] for row in due]
        if self._is_chain:
            made = [*map(self._draft, drafting, depths)]
        else:
            made = _draft_all(drafting, depths, self._rule.min_prob)
        for row, tree in zip(due, made, strict=True):
            drafts[row] = tree.best_chain() if self._is_chain else tree
        # Sessions learn only if they draft in the next step, so this is a cost of drafting.
        seconds = self._clock() - start + self._learning_s
        again = {"waiting": max(waiting)} if self._is_chain else {}
        sizes = self._rule.choose(drafts, seconds, **again)
        chosen = zip(drafts, sizes, max_depths, strict=True)
        return [self._cut(tree or EMPTY_TREE, size, depth) for tree, size, depth in chosen]

    def record(
        self, emitted: Sequence[Sequence[int] | None], step_s: float, learning_s: float = 0.0
    ) -> None:
        self._learning_s = learning_s
        self._rule.learn(emitted, step_s)

    def join(self) -> None:
        self._rule.join()

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
_step_times: WeakKeyDictionary[Any, dict[Any, StepTimes]] = WeakKeyDictionary()


def draft_stats_of(drafter: Drafter) -> DraftStats:
    """Return the statistics of a drafter, new ones if it has none or cannot be a key."""
    new = DraftStats()
    try:
        return _draft_stats.setdefault(drafter, new)
    except TypeError:
        return new


def step_times_of(model: Any, setting: Any, runner: Verifier) -> StepTimes:
    """Return the times of a model's steps in a setting, which all its requests share."""
    of_model = _step_times.setdefault(model, {})
    if setting not in of_model:
        of_model[setting] = StepTimes(runner.token_cost, runner.pass_times())
    return of_model[setting]


def _draft_all(
    sessions: Sequence[Session], max_depths: Sequence[int], min_prob: float
) -> list[TokenTree]:
    """Draft for each row, in parallel if all sessions are the core's."""
    if len(sessions) > 1 and all(isinstance(session, DraftSession) for session in sessions):
        of_core = cast("list[DraftSession]", [*sessions])
        return draft_batch(of_core, MAX_NODES, max_depths=[*max_depths], min_prob=min_prob)
    rows = zip(sessions, max_depths, strict=True)
    return [session.draft(MAX_NODES, depth, min_prob) for session, depth in rows]


def require_max_nodes(max_nodes: int | Literal["auto"]) -> None:
    """Raise a ValueError if `max_nodes` is neither `auto` nor an integer of 0 or more."""
    is_number = isinstance(max_nodes, Integral) and not isinstance(max_nodes, bool)
    if max_nodes != "auto" and not (is_number and max_nodes >= 0):
        raise ValueError(f"max_nodes must be 'auto' or an integer of 0 or more, got {max_nodes!r}")
