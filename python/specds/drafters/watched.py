"""A drafter that reports each step: the draft, the accepted nodes, and their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specds._core import SOURCES, TokenTree
from specds.drafters.session import EMPTY_TREE, Drafter, DrafterOf, Session, SessionOf


@dataclass(frozen=True)
class Step:
    """A draft and its outcome.

    Attributes:
        tree: What was verified; may be empty.
        path: Its accepted nodes, from the root on.
        token_ids: The emitted tokens: those of the path, then the target's own.
    """

    tree: TokenTree
    path: list[int]
    token_ids: list[int]

    @property
    def sources(self) -> list[str | None]:
        """The source of each emitted token; None: the target itself."""
        drafted = [SOURCES[source] for source in self.tree.sources[self.path].tolist()]
        return [*drafted, *[None] * (len(self.token_ids) - len(drafted))]


class Watched(DrafterOf):
    """Calls `report` with each step, the prefill included, from the thread that decodes."""

    def __init__(self, drafter: Drafter, report: Callable[[Step], Any]) -> None:
        super().__init__(drafter)
        self._report = report

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Any:
        return WatchedSession(self.drafter.session(prompt_ids), self._report)


class WatchedSession(SessionOf):
    def __init__(self, session: Session, report: Callable[[Step], Any]) -> None:
        super().__init__(session)
        self._report = report
        self._tree, self._max_depth = EMPTY_TREE, 0

    def draft(
        self, max_nodes: int, max_depth: int | None = None, *args: Any, **kwargs: Any
    ) -> TokenTree:
        self._tree = self.session.draft(max_nodes, max_depth, *args, **kwargs)
        self._max_depth = max_nodes if max_depth is None else max_depth
        return self._tree

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        self.session.observe(token_ids, num_verified)
        tree, self._tree = self._tree, EMPTY_TREE
        if num_verified is None:  # a next prompt of a conversation: nobody emitted it
            return
        tree = tree.prefix(num_verified)
        emitted = [int(token) for token in token_ids]
        self._report(Step(tree, right_path(tree, emitted)[: self._max_depth], emitted))


def right_path(tree: TokenTree, truth: Sequence[int] | np.ndarray) -> list[int]:
    """The nodes of the longest path of a tree whose tokens are a prefix of `truth`."""
    path: list[int] = []
    node = -1
    # A child comes after its parent, so one pass follows the only path that can be right.
    for index, (token, parent) in enumerate(
        zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)
    ):
        if parent == node and len(path) < len(truth) and token == truth[len(path)]:
            node = index
            path.append(node)
    return path
