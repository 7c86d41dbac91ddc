"""How does a level run its model: over a text and a draft of what follows, keeping what it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from specds.verify.generic import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from specds._core import TokenTree

# New tokens that may share a pass with a tree: its mask has a row for each of them.
_MOST_WITH_A_TREE = 64
_FIRST_SLOTS = 1024


class CachedModel:
    """A model as a function from a text to logits; its KV cache remembers what was run before.

    Where the text of a call differs from that of the call before, the cache is rolled back to what
    they have in common. So whoever takes tokens back need not say so, at any level.

    Args:
        model: A causal language model of which `require_support` approves.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._runner = Runner(model, prompt_length=0, max_length=_FIRST_SLOTS, max_nodes=0)
        self._cache = self._runner.cache
        self._cached: list[int] = []
        self._missing: list[int] = []
        self._tree: TokenTree | None = None

    @torch.no_grad()
    def run(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Runs a text and a draft of what follows it.

        Args:
            tokens: The whole text, not empty.
            tree: The draft; it may be empty.

        Returns:
            Logits `(1 + num_nodes, vocab_size)`: row 0 after the text, row ``1 + i`` after node
            `i`.
        """
        self._roll_back_to(tokens)
        missing = list(tokens[len(self._cached) :])
        # A cache takes a tree only once it knows the shapes of the states.
        is_too_much = len(missing) > _MOST_WITH_A_TREE or not self._cached
        if is_too_much and not _is_chain(tree):
            self._runner.run(missing, None)
            self._keep(missing, range(len(missing)))
            self._roll_back_to(tokens)
            missing = missing[-1:]
        self._missing, self._tree = missing, tree
        return self._runner.run(missing, tree if len(tree) else None)

    def commit(self, path: Sequence[int]) -> None:
        """Remembers the text of the last `run` and the nodes `path` of its draft, root to leaf."""
        if self._tree is None:
            raise RuntimeError("there is nothing to commit: call `run` first")
        first = len(self._missing)
        tokens = self._missing + self._tree.token_ids[list(path)].tolist()
        self._keep(tokens, [*range(first), *(first + node for node in path)])
        self._tree = None

    def _keep(self, tokens: list[int], places: Sequence[int]) -> None:
        self._cache.commit([places])
        self._cached += tokens

    def _roll_back_to(self, tokens: Sequence[int]) -> None:
        """Forgets what the text does not begin with, and its last token: its logits are wanted."""
        length = min(len(self._cached), len(tokens) - 1)
        if self._cached[:length] != tokens[:length]:
            pairs = zip(self._cached, tokens, strict=False)
            length = next(place for place, (old, new) in enumerate(pairs) if old != new)
        del self._cached[length:]
        self._cache.roll_back(length)


def _is_chain(tree: TokenTree) -> bool:
    """Whether every node follows the one before, so that the model's own causal mask will do."""
    return bool((tree.parents == np.arange(-1, len(tree) - 1)).all())
