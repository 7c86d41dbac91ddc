"""How is a tree checked: one forward pass of the target model over the last token and its tree."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from specds.verify.cache import TreeCache
from specds.verify.masks import MaskBuilder, of_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedModel

    from specds._core import TokenTree
    from specds.verify.masks import Masks

# Slots allocated ahead of the prompt; requests that run on double the cache when they get there, so
# that a large `max_length` which is never reached costs no memory.
_FIRST_SLOTS = 1024
# A pass over more tokens of prompts is cut up: what a pass needs beside the cache grows with its
# tokens, and with their number squared where a layer has a window.
_LONG_PROMPT = 4096
_CHUNK = 1024


class Runner:
    """The generic path: the target of one request as transformers computes it, masked by a tree.

    Call `prefill_rows` once, then `verify_rows` and `commit_rows` in turn; `prefill`, `verify` and
    `commit` are the same for a single row. More rows than one it has only where `takes_rows`.
    """

    takes_rows: ClassVar[bool] = False
    """Whether one pass can be of several sequences."""

    node_steps: tuple[int, ...] = ()
    """Numbers of nodes that passes have, up to 63; empty where they have any."""

    accepts: bool = False
    """Whether it can accept too, by `launch` and `wait` (see `StaticRunner`)."""

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
        self._device = model.device
        takes = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in takes
        self._slots = min(max_length, prompt_length + _FIRST_SLOTS) + max_nodes
        self._masks = MaskBuilder(config, model.dtype)
        self.cache = self._make_cache(num_rows)

    @property
    def reason(self) -> str:
        """Why passes are slower than they might be; empty where they are not."""
        return ""

    def _make_cache(self, num_rows: int) -> TreeCache:
        return TreeCache(self._config.num_hidden_layers, self._slots, num_rows)

    def prefill(self, token_ids: torch.Tensor, chunk_size: int | None = None) -> torch.Tensor:
        """`prefill_rows` of a single row."""
        return self.prefill_rows([token_ids], chunk_size)

    def prefill_rows(
        self, prompts: Sequence[torch.Tensor], chunk_size: int | None = None
    ) -> torch.Tensor:
        """Runs prompts through the model and its own causal masks; equal ones once.

        Args:
            prompts: For each row int64 `(1, prompt_length)`, at least one token more than the cache
                holds of the row; those tokens are not read again.
            chunk_size: Tokens per forward pass of a row; None for all in one, or 1,024 where they
                are more than 4,096.

        Returns:
            The logits after the last token of each row, `(num_rows, vocab_size)`.
        """
        first_rows: dict[tuple[int, ...], int] = {}
        originals = [
            first_rows.setdefault(tuple(prompt[0].tolist()), row)
            for row, prompt in enumerate(prompts)
        ]
        logits: dict[int, torch.Tensor] = {}
        for rows in self._together(prompts, [*first_rows.values()], chunk_size):
            if len(rows) > 1:
                logits |= zip(rows, self._prefill_padded(prompts, rows), strict=True)
            else:
                logits[rows[0]] = self._prefill_alone(prompts[rows[0]], rows[0], chunk_size)
        for row, original in enumerate(originals):
            if row != original:
                self.cache.copy_row(original, row)
        return torch.stack([logits[original] for original in originals])

    def _together(
        self, prompts: Sequence[torch.Tensor], rows: list[int], chunk_size: int | None
    ) -> Iterator[list[int]]:
        """Rows whose prompts go through the model in one pass."""
        group: list[int] = []
        # Of like length, since shorter ones are padded.
        for row in sorted(rows, key=lambda row: prompts[row].shape[1]):
            length = prompts[row].shape[1]
            fits = chunk_size is None and (len(group) + 1) * length <= _LONG_PROMPT
            if group and not (fits and self.cache.lengths[row] == 0):
                yield group
                group = []
            group.append(row)
        yield group

    def _prefill_alone(
        self, token_ids: torch.Tensor, row: int, chunk_size: int | None
    ) -> torch.Tensor:
        self.cache.row = row
        token_ids = token_ids.to(self._device)
        length = token_ids.shape[1]
        step = chunk_size or (length if length <= _LONG_PROMPT else _CHUNK)
        for start in range(self.cache.length, length, step):
            chunk = token_ids[:, start : start + step]
            known, width = self.cache.length, chunk.shape[1]
            self.cache.reserve(known + width)
            positions = self._count(known, width)
            end = known + width if known else 0
            self.cache.place(row * self.cache.capacity + positions, end, row)
            logits = self._forward(chunk, positions[None], None, last=1)
            self.cache.settle()
            self.cache.lengths[row] += width
        return logits[0, -1]

    def _prefill_padded(self, prompts: Sequence[torch.Tensor], rows: list[int]) -> torch.Tensor:
        """Runs several prompts through the model, padded on the left as plain decoding has them."""
        lengths = [prompts[row].shape[1] for row in rows]
        width, capacity = max(lengths), self.cache.capacity
        ids = torch.zeros((len(rows), width), dtype=torch.int64, device="cpu")
        places = torch.empty_like(ids)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            ids[index, width - length :] = prompts[row][0]
            # Padding goes behind the prompt, where the row's next pass will write.
            places[index] = (torch.arange(width, device="cpu") - (width - length)) % width
            places[index] += row * capacity
        shown = (
            torch.arange(width, device="cpu")
            >= width - torch.tensor(lengths, device="cpu")[:, None]
        )
        positions = (shown.cumsum(1) - 1).clamp(min=0)
        ids, places, shown, positions = (
            part.to(self._device) for part in (ids, places, shown.long(), positions)
        )
        self.cache.place(places.flatten(), 0, rows[0])
        logits = self._forward(ids, positions, shown, last=1)
        self.cache.settle()
        for row, length in zip(rows, lengths, strict=True):
            self.cache.lengths[row] = length
        return logits[:, -1]

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
        (tree,) = trees
        return [self.run(token_ids, tree)]

    def run(self, tokens: Sequence[int], tree: TokenTree | None) -> torch.Tensor:
        """Runs tokens that are not in the cache, and a tree behind the last of them.

        Returns:
            Logits `(1 + num_nodes, vocab_size)`, as of `verify_rows`.
        """
        known, num_new = self.cache.length, len(tokens)
        ids, depths, mask = np.array(tokens), np.arange(num_new), None
        if tree is not None:
            visible, of_nodes = of_tree(tree)
            ids = np.concatenate((ids, tree.token_ids))
            depths = np.concatenate((depths, num_new - 1 + of_nodes[1:]))
            if (depths != np.arange(len(depths))).any():
                seen = np.tri(len(depths), dtype=np.bool_)
                seen[num_new - 1 :, num_new - 1 :] = visible
                mask = self._mask(seen, depths)
        end = known + len(ids)
        self.cache.reserve(end)
        self.cache.place(self._count(known, len(ids)), end if known else 0)
        numbers = torch.from_numpy(np.stack((ids, known + depths))[:, None])
        token_ids, positions = numbers.to(self._device)
        num_logits = 1 if tree is None else 1 + len(tree)
        logits = self._forward(token_ids, positions, mask, last=num_logits)[0, -num_logits:]
        self.cache.settle()
        return logits

    def _mask(self, visible: np.ndarray, depths: np.ndarray) -> Masks:
        """The mask of a pass of one row, of bool `(width, width)` and int64 `(width,)`."""
        arrays = visible, depths, np.array([self.cache.length])
        seen, at, length = (torch.from_numpy(array).to(self._device) for array in arrays)
        return self._masks.build(seen[None], at[None], length, self.cache.length + len(depths))

    def _count(self, start: int, number: int) -> torch.Tensor:
        return torch.arange(start, start + number, device=self._device)

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps, in each row, the states of the last token and of the tree nodes of a path."""
        self.cache.commit([self._places_of(path) for path in paths])

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
        mask: Masks,
        *,
        last: int | None = None,
        model: PreTrainedModel | None = None,
    ) -> torch.Tensor:
        """The model's logits, of at least the last so many tokens."""
        kwargs: dict[str, Any] = {}
        if last is not None and self._keeps_logits:
            kwargs["logits_to_keep"] = last
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
