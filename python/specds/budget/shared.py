"""How do processes that share a model run the same passes: they all verify drafts of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specds._core import TokenTree
from specds.budget.policy import FixedBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds.drafters.session import Session

SHARED_NODES = 15
"""What `auto` is for them: no two processes measure the same time."""


class SharedBudget(FixedBudget):
    """A fixed number of nodes, whose drafts are those of process 0.

    All processes draft, so that their sessions learn; what they know may differ, and so may drafts.
    """

    def draft(
        self, sessions: Sequence[Session], max_depths: Sequence[int]
    ) -> list[TokenTree | None]:
        """As `Budget.draft`."""
        trees = super().draft(sessions, max_depths)
        if self.pauses:
            return trees
        told: list[Any] = [tree and (tree.token_ids, tree.parents, tree.probs) for tree in trees]
        torch.distributed.broadcast_object_list(told)
        return [tree and TokenTree(*tree) for tree in told]
