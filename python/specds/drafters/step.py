"""A step of a row: the draft, the accepted nodes, and their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specds._core import SOURCES, TokenTree


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
