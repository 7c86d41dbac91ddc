"""A drafter's session that drafts what a grammar forces, and nothing that it forbids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from specds._core import Session, TokenTree
from specds.constraints.constraint import Guide

if TYPE_CHECKING:
    from specds.drafters.session import RequestRules

_MORE_TIMES = 3
"""A draft before its removals has this many times the nodes: twice gives 5 % fewer tokens."""
_MOST_MORE = 64
"""The most additional nodes: large drafts have likely nodes enough."""


class ConstrainedSession(Session):
    """A session with a constraint, whose drafts have allowed nodes only.

    Args:
        inner: The session of the drafter.
        guide: The constraint, to which the caller passes the emitted tokens.
        known_tokens: The drafter's vocabulary; the session gets no other token.
    """

    def __init__(self, inner: Session, guide: Guide, known_tokens: int) -> None:
        self.inner, self._guide, self._known_tokens = inner, guide, known_tokens
        self._is_pruned = False

    def draft(
        self, max_nodes: int, max_depth: int | None = None, min_prob: float = 0.0
    ) -> TokenTree:
        self._is_pruned = self._guide.guides
        if not self._is_pruned:
            return self.inner.draft(max_nodes, max_depth, min_prob)
        if paths := self._guide.ahead():
            self.inner.suggest(TokenTree.of_paths(paths, self._known_tokens))
        tree = self.inner.draft(num_candidates(max_nodes), max_depth, min_prob)
        return tree.allowed(self._guide.constraint, max_nodes)

    def observe(
        self, token_ids: Sequence[int] | NDArray[Any], num_verified: int | None = None
    ) -> None:
        self.inner.observe(token_ids, None if self._is_pruned else num_verified)

    def draft_after(self, token_ids: Sequence[int] | NDArray[Any], max_nodes: int) -> TokenTree:
        return self.inner.draft_after(token_ids, max_nodes)

    def suggest(self, *arguments: Any, **named: Any) -> bool:
        return self.inner.suggest(*arguments, **named)

    def begin(self, rules: RequestRules) -> None:
        self.inner.begin(rules)

    def set_step_time(self, step_seconds: float) -> None:
        self.inner.set_step_time(step_seconds)

    def observe_predictions(self, tree: TokenTree, predictions: NDArray[Any]) -> None:
        self.inner.observe_predictions(tree, predictions)

    def finish(self) -> None:
        self.inner.finish()

    @property
    def num_predictions(self) -> int:
        return self.inner.num_predictions

    @property
    def level_stats(self) -> Mapping[str, Any]:
        return self.inner.level_stats

    @property
    def match_length(self) -> int | None:
        return self.inner.match_length


def num_candidates(max_nodes: int) -> int:
    """Return the number of nodes to draft where forbidden ones are removed."""
    return min(_MORE_TIMES * max_nodes, max_nodes + _MOST_MORE)
