"""How is a tree checked: one forward pass of the target model over the last token and its tree."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from specds.verify.cache import TreeCache
from specds.verify.masks import MaskBuilder, of_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from specds._core import TokenTree

# Slots allocated ahead of the prompt; requests that run on double the cache when they get there, so
# that a large `max_length` which is never reached costs no memory.
_FIRST_SLOTS = 1024
# A pass over a longer prompt is cut up: what a pass needs beside the cache grows with its tokens,
# and with their number squared where a layer has a window.
_LONG_PROMPT = 4096
_CHUNK = 1024


class Runner:
    """The target model of one request, with the KV cache and the masks it needs.

    Call `prefill` once per row, then `verify_rows` and `commit_rows` in turn; `verify` and `commit`
    are the same for a single row.

    Args:
        model: The target model.
        prompt_length: Tokens that `prefill` will get, of the longest row.
        max_length: Most tokens of the request, prompt included.
        max_nodes: Most nodes of a tree.
        num_rows: Sequences; more than one only where `takes_rows`.
    """

    takes_rows: ClassVar[bool] = False
    """Whether one pass can be of several sequences."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        prompt_length: int,
        max_length: int,
        max_nodes: int,
        num_rows: int = 1,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        self._model = model
        self._config = config
        takes = inspect.signature(model.forward).parameters
        self._last_logits: dict[str, Any] = (
            {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        )
        self._slots = min(max_length, prompt_length + _FIRST_SLOTS) + max_nodes
        self.cache = TreeCache(config.num_hidden_layers, self._slots, num_rows)
        self._masks = MaskBuilder(config, model.dtype)

    def prefill(
        self, token_ids: torch.Tensor, chunk_size: int | None = None, row: int = 0
    ) -> torch.Tensor:
        """Runs a prompt through the model and its own causal masks.

        Args:
            token_ids: int64 `(1, prompt_length)`, at least one token.
            chunk_size: Tokens per forward pass; None for all in one, or 1,024 where they are more
                than 4,096.
            row: Whose prompt it is.

        Returns:
            The logits after the last token, `(1, vocab_size)`.
        """
        self.cache.use_row(row)
        token_ids = token_ids.to(self._model.device)
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)[None]
        length = token_ids.shape[1]
        step = chunk_size or (length if length <= _LONG_PROMPT else _CHUNK)
        for start in range(0, length, step):
            chunk = slice(start, start + step)
            logits = self._forward(
                token_ids[:, chunk], positions[:, chunk], None, **self._last_logits
            )[0]
            self.cache.advance(token_ids[:, chunk].shape[1])
        return logits[-1:]

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree | None]
    ) -> list[torch.Tensor]:
        """Runs the last emitted token of each row and its tree through the model, in one pass.

        Args:
            token_ids: The last emitted tokens, the only ones whose states are not in the cache.
            trees: The drafts; None where one is empty: of a single row, that pass is plain
                decoding, without our mask.

        Returns:
            For each row, logits `(1 + num_nodes, vocab_size)`: row 0 after the last token, row
            ``1 + i`` after node `i` of the tree.
        """
        (token_id,), (tree,) = token_ids, trees
        tokens, depths, mask = np.array([token_id]), np.array([0]), None
        if tree is not None:
            visible, depths = of_tree(tree)
            tokens = np.concatenate((tokens, tree.token_ids))
            mask = self._mask_of(visible, depths)
        inputs = np.stack((tokens, self.cache.length + depths))[:, None]
        ids, positions = torch.from_numpy(inputs).to(self._model.device)
        return [self._forward(ids, positions, mask)[0]]

    def _mask_of(
        self, visible: NDArray[np.bool_], depths: NDArray[np.int64]
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        device = self._model.device
        seen, at = (torch.from_numpy(array)[None].to(device) for array in (visible, depths))
        return self._masks.of_row(seen, at, self.cache.length)

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps, in each row, the states of the last token and of the tree nodes of a path."""
        for row, path in enumerate(paths):
            self.cache.use_row(row)
            self.cache.commit(self._places_of(path))

    def _places_of(self, path: Sequence[int]) -> Sequence[int]:
        """Where in the last pass of a row the last token and the nodes `path` are, ascending."""
        return [0, *(1 + node for node in path)]

    def verify(self, token_id: int, tree: TokenTree | None) -> torch.Tensor:
        """`verify_rows` of a single row."""
        return self.verify_rows([token_id], [tree])[0]

    def commit(self, path: Sequence[int]) -> None:
        """`commit_rows` of a single row."""
        self.commit_rows([path])

    def leave(self, row: int) -> None:
        """Ends a row; the last one takes its number."""
        self.cache.drop_row(row)

    def close(self) -> None:
        """Ends the request; what it used may serve another one."""

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | dict[str, torch.Tensor] | None,
        *,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        output = (model or self._model)(
            input_ids=token_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
            **kwargs,
        )
        logits: torch.Tensor = output.logits
        return logits
