"""Verification backend `model`: one forward pass over the last tokens and their trees."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from specds._core import TokenTree
from specds.generation.runner import Verifier
from specds.transformers.accept.on_device import likeliest_on_host
from specds.transformers.verify.cache import CACHE_NAME, TreeCache
from specds.transformers.verify.few_tokens import FewTokens, unseen_reason
from specds.transformers.verify.inputs import Inputs, MaskBuilder, Masks, kernel_size
from specds.transformers.verify.states import MarkedCache

# Slots allocated after the prompt: a large `max_length` that is never reached costs no memory.
_FIRST_SLOTS = 1024
# A pass over more prompt tokens is split: its memory, apart from the cache, grows with its tokens,
# and with their square if a layer has a window.
LONG_PROMPT = 4096
CHUNK = 1024


class Runner(Verifier):
    """Verification by the model as transformers computes it, with masks of the trees.

    Args:
        model: The target.
        prompt_length: Tokens of the longest prompt.
        max_length: Maximum tokens of a row, prompt included.
        max_nodes: Maximum nodes of a draft.
        num_rows: Rows of the request.

    Attributes:
        needs_mask: Whether trees are verified by the model's own attention, with a mask.
    """

    name = "model"
    needs_mask = True

    @classmethod
    def reasons_against(cls, model: PreTrainedModel) -> Iterable[str]:
        """Return why this backend, of all, cannot verify drafts on a model."""
        config = model.config.get_text_config(decoder=True)
        return filter(None, [unseen_reason(model)] if kernel_size(config) else [])

    @classmethod
    def has_kernel(cls, model: PreTrainedModel) -> bool:
        """Return whether passes run our attention kernel."""
        return False

    @classmethod
    def is_shape_invariant(cls, model: PreTrainedModel) -> bool:
        return True

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
        threads = torch.get_num_threads()
        self.setting: tuple[Any, ...] = type(self), str(model.device), model.dtype, threads
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._slots = min(max_length, prompt_length + _FIRST_SLOTS) + max_nodes
        if self.takes_trees:
            self._masks = MaskBuilder(config, model.dtype)
            self._always_masks = self._masks.has_windows
        self._num_moved = 0
        self.cache = TreeCache(self._slots, num_rows)
        self._of_trees: Any = model
        if self.takes_trees and (size := kernel_size(config)):
            self.cache.kernel_size, self._of_trees = size, FewTokens(model, has_kernels=True)

    def load(self, past: Any) -> None:
        length, cache = past.get_seq_length(), self.cache
        if length == 0:
            return
        cache.reserve(length)
        cache.place(torch.arange(length, device="cpu"), 0)
        for index, layer in enumerate(past.layers):
            if _is_convolution(layer):
                (states,) = layer.conv_states.values()
                cache.update_conv_state(pad(states, (length - states.shape[-1], 0)), index)
                continue
            # A sliding window has dropped the first states, which no later token sees.
            lost = (0, 0, length - layer.keys.shape[2], 0)
            cache.update(pad(layer.keys, lost), pad(layer.values, lost), index)
        cache.settle()
        cache.lengths[0] = length

    def extend(self, past: Any) -> Any:
        start, whole = past.get_seq_length(), self.committed()
        if not any(map(_is_convolution, whole.layers)):
            for index, layer in enumerate(whole.layers):
                past.update(layer.keys[:, :, start:], layer.values[:, :, start:], index)
            return past
        vars(past).update(vars(whole))
        if isinstance(past, MarkedCache) and start < past.mark_at:
            past.mark = self.cache.committed(length=past.mark_at), past.mark_at
        return past

    def fix_shape(self, num_nodes: int, num_slots: int) -> None:
        """Give all passes over trees one shape."""
        self.least_nodes, self.num_seen, self._always_masks = num_nodes, num_slots, True

    def prefill_rows(self, prompts: Sequence[Tensor], chunk_size: int | None = None) -> Tensor:
        """Run the prompts through the model with its own causal masks, equal prompts once.

        In one pass, or in passes of 1,024 tokens if the prompt has more than 4,096.
        """
        first_rows: dict[tuple[int, ...], int] = {}
        texts = enumerate(tuple(prompt[0].tolist()) for prompt in prompts)
        originals = [first_rows.setdefault(text, row) for row, text in texts]
        # Similar lengths in one pass, since shorter prompts are padded.
        rows = sorted(first_rows.values(), key=lambda row: -prompts[row].shape[1])
        is_alone = chunk_size is not None or any(self.cache.lengths)
        logits: dict[int, Tensor] = {}
        self._num_unread = sum(prompts[row].shape[1] - self.cache.lengths[row] for row in rows)
        self._num_tokens = self._num_unread
        self.report_prefill(0, self._num_tokens)
        while rows:
            number = 1 if is_alone else max(LONG_PROMPT // prompts[rows[0]].shape[1], 1)
            some, rows = rows[:number], rows[number:]
            logits |= zip(some, self._read(prompts, some, chunk_size), strict=True)
        for row, original in enumerate(originals):
            if row != original:
                self.cache.copy_row(original, row)
        return torch.stack([logits[original] for original in originals])

    def _read(self, prompts: Sequence[Tensor], rows: list[int], chunk_size: int | None) -> Tensor:
        """Run one prompt in chunks, or several, padded on the left as transformers pads them."""
        parts = [prompts[row][0] for row in rows]
        ids = pad_sequence(parts, batch_first=True, padding_side="left")
        lengths, width = torch.tensor([[*map(len, parts)]], device="cpu").T, ids.shape[1]
        step = chunk_size or (width if width <= LONG_PROMPT else CHUNK)
        for start in range(self.cache.lengths[rows[0]], width, step):
            end = min(start + step, width)
            self.cache.reserve(end)
            positions = torch.arange(start, end, device="cpu") - width + lengths
            # Padding goes after the prompt, where the next pass overwrites it.
            first_places = torch.tensor(rows, device="cpu")[:, None] * self.cache.capacity
            places = (first_places + positions % width).to(self._device)
            kernels = None
            if size := self.cache.kernel_size:
                seen_by = positions[:, :, None] + torch.arange(1 - size, 1, device="cpu")
                seen_by = torch.where(seen_by < 0, -1, seen_by + first_places[:, :, None])
                kernels = seen_by.flatten(0, 1)
            shown = (positions >= 0).long().to(self._device) if len(rows) > 1 else None
            seen = end if start else 0
            self.cache.place(places.flatten(), seen, rows[0], 1, kernels)
            chunk, positions = (of.to(self._device) for of in (ids[:, start:end], positions))
            model = self._of_trees if start else self._model
            logits = self._forward(chunk, positions.clamp(min=0), shown, last=1, model=model)
            self.cache.settle()
            for row, part in zip(rows, parts, strict=True):
                self._num_unread += self.cache.lengths[row]
                self.cache.lengths[row] = min(end, len(part))
                self._num_unread -= self.cache.lengths[row]
            self.report_prefill(self._num_tokens - self._num_unread, self._num_tokens)
        return logits[:, -1]

    def verify_rows(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Tensor]:
        width = self._num_places(trees)
        end = self.num_seen or max(self.cache.lengths) + width
        self.cache.reserve(end)
        inputs = Inputs.on_host(len(trees), width)
        inputs.fill(token_ids, trees, self.cache.lengths)
        return of_rows(self._pass(inputs.to(self._device), end), trees)

    def _num_places(self, trees: Sequence[TokenTree]) -> int:
        """Return the places of a row: its last token, and nodes or padding."""
        return 1 + max(self.least_nodes, *map(len, trees))

    def _pass(self, inputs: Inputs, end: int) -> Tensor:
        """Return the logits at all places, from a pass that sees `end` slots of each row."""
        num_rows, width = inputs.token_ids.shape
        kernels = self._kernels(inputs) if self.cache.kernel_size else None
        self.cache.place(self._places(inputs).flatten(), end, 0, num_rows, kernels)
        logits = self._logits(inputs, inputs.lengths[:, None] + inputs.depths, end)
        return logits.view(num_rows, width, -1)

    def _logits(self, inputs: Inputs, positions: Tensor, end: int) -> Tensor:
        mask = self._mask(inputs, end)
        return self._forward(inputs.token_ids, positions, mask, model=self._of_trees)

    def _mask(self, inputs: Inputs, end: int) -> Masks:
        """Return the mask; None if one token sees every slot, since attention is then faster."""
        if inputs.token_ids.numel() == 1 and not self._always_masks:
            return None
        return self._masks.build(inputs.visible(), inputs.depths, inputs.lengths, end)

    def _places(self, inputs: Inputs) -> Tensor:
        """Return the places of a pass's states, int64 `(num_rows, width)` (see `TreeCache`)."""
        num_rows, width = inputs.token_ids.shape
        rows, slots = (torch.arange(n, device=inputs.lengths.device) for n in (num_rows, width))
        return (rows * self.cache.capacity + inputs.lengths)[:, None] + slots

    def _kernels(self, inputs: Inputs) -> Tensor:
        """Return the places of the last ancestors of each token, and of itself."""
        at = [torch.arange(inputs.parents.shape[1], device=self._device).expand_as(inputs.parents)]
        for _ in range(1, self.cache.kernel_size):
            parents = inputs.parents.gather(1, at[-1].clamp(min=0))
            at.append(torch.where(at[-1] > 0, parents, at[-1] - 1))
        slots = inputs.lengths[:, None, None] + torch.stack(at[::-1], -1)
        rows = torch.arange(len(slots), device=self._device)[:, None, None] * self.cache.capacity
        return torch.where(slots < 0, -1, slots + rows).flatten(0, 1)

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        self.cache.commit([self._places_of(path) for path in paths], self._num_moved)

    def _places_of(self, path: Sequence[int]) -> Sequence[int]:
        """Return the ascending indices, in the last pass of a row, of the last token and a path."""
        return [0, *(1 + node for node in path)]

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def committed(self) -> Any:
        return self.cache.committed()

    def leave(self, row: int) -> None:
        self.cache.drop_row(row)

    def likeliest(
        self, logits: Sequence[Tensor], num_predictions: int, known_tokens: int
    ) -> NDArray[np.int64]:
        joined = torch.cat([*logits]) if len(logits) > 1 else logits[0]
        return likeliest_on_host(joined, num_predictions, known_tokens)

    def _forward(
        self, token_ids: Tensor, positions: Tensor, mask: Masks, *, last: int = 0, model: Any = None
    ) -> Tensor:
        """Return the model's logits: of the `last` tokens if it supports that, or of all."""
        asked: dict[str, Any] = {"attention_mask": mask, "position_ids": positions}
        asked |= {CACHE_NAME: self.cache, "use_cache": True, "return_dict": True}
        if last and self._keeps_logits:
            asked["logits_to_keep"] = last
        logits: Tensor = (model or self._model)(input_ids=token_ids, **asked).logits
        return logits


def of_rows(logits: Tensor, trees: Sequence[TokenTree]) -> list[Tensor]:
    """Split logits `(num_rows, width, vocab_size)` by row, without those of padding."""
    return [row[: 1 + len(tree)] for row, tree in zip(logits, trees, strict=False)]


def _is_convolution(layer: Any) -> bool:
    return hasattr(layer, "conv_states")
