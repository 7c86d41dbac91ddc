"""Chains for models with recurrent layers, whose state no token can be dropped from.

A pass writes such states in place. Where a part of a draft is rejected, those before it are
restored, and the accepted tokens are fed again with the next draft: no pass is added.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, cache_utils

from specds._core import TokenTree
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.few_tokens import FewTokens
from specds.transformers.verify.generic import CHUNK, LONG_PROMPT, Runner
from specds.transformers.verify.states import MarkedCache, copied, joined, part, restored

# With this many tokens to feed again, a pass without a draft makes them part of the states.
_MOST_AGAIN = 8
# Up to this number, a row is padded to share a pass; its padding is rejected like a draft.
_MOST_PADDING = 8
# Wider passes are those over prompts.
_FEW = 64


@dataclass(eq=False)
class _Group:
    """Rows whose states are in one cache; `before` is a short copy of a single row's."""

    rows: list[_Sequence]
    cache: Any = None
    before: Any = None


@dataclass(eq=False)
class _Sequence:
    """One sequence.

    Attributes:
        length: Tokens that the states are of.
        again: Committed tokens after these, before the last one.
        fed: The tokens of the last pass.
    """

    length: int = 0
    again: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = _Group([self])

    def own(self) -> _Group:
        """Return a group of this row alone."""
        if self.group.rows != [self]:
            place = self.group.rows.index(self)
            self.group = _Group([self], part(self.group.cache, place, self.length))
        return self.group


class ChainRunner(Runner):
    """Verify chains by the model's own cache and masks: rows of similar width share a pass."""

    name = "chain"
    takes_trees = needs_mask = False
    # See `MarkedCache`.
    mark_at = 0
    mark: tuple[Any, int] | None = None

    @classmethod
    def reasons_against(cls, model: PreTrainedModel) -> Iterable[str]:
        return ()

    def __init__(self, model: PreTrainedModel, *, num_rows: int = 1, **sizes: int) -> None:
        super().__init__(model, num_rows=num_rows, **sizes)
        self._rows = [_Sequence() for _ in range(num_rows)]
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._of_few_tokens = FewTokens(model)
        # Whether rows can share a pass: what other classes hold has no order that is known.
        self._joins = False

    @property
    def lengths(self) -> list[int]:
        return [row.length + len(row.again) for row in self._rows]

    @property
    def waiting(self) -> list[int]:
        return [len(row.again) for row in self._rows]

    def room(self, row: int) -> int:
        return 0 if len(self._rows[row].again) >= _MOST_AGAIN else sys.maxsize

    def load(self, past: Any) -> None:
        self.mark_at, length = getattr(past, "mark_at", 0), past.get_seq_length()
        if length > 0 or not isinstance(past, MarkedCache):
            self._rows[0].group.cache, self._rows[0].length = copied(past), length

    def extend(self, past: Any) -> Any:
        vars(past).update(vars(self.committed()))
        if isinstance(past, MarkedCache):
            past.mark = self.mark or past.mark
        return past

    def prefill_rows(self, prompts: Sequence[Tensor], chunk_size: int | None = None) -> Tensor:
        known: dict[tuple[int, ...], tuple[_Sequence, Tensor]] = {}
        texts = [tuple(prompt[0].tolist()) for prompt in prompts]
        self._num_read = 0
        # Only a single row can have states before its prompt is read.
        self._num_tokens = sum(map(len, {*texts})) - self._rows[0].length
        self.report_prefill(0, self._num_tokens)
        for row, ids in zip(self._rows, texts, strict=True):
            if ids in known:
                row.group.cache, row.length = copied(known[ids][0].group.cache), len(ids)
            else:
                known[ids] = row, self._read_prompt(row, [*ids], chunk_size)
        layers = [type(layer) for row in self._rows for layer in row.group.cache.layers]
        self._joins = all(layer.__module__ == cache_utils.__name__ for layer in layers)
        return torch.stack([known[ids][1] for ids in texts])

    def _read_prompt(self, row: _Sequence, ids: list[int], chunk_size: int | None = None) -> Tensor:
        """Run the tokens that have no states yet, and return the logits after the last one."""
        step = chunk_size or (CHUNK if len(ids) - row.length > LONG_PROMPT else LONG_PROMPT)
        ends = {*range(row.length, len(ids), step), len(ids)}
        ends |= {self.mark_at} & {*range(row.length + 1, len(ids))}
        for start, end in pairwise(sorted(ends)):
            row.fed = ids[start:end]
            logits = self._feed(row.group, 1)
            row.length = end
            self._num_read += end - start
            self.report_prefill(self._num_read, self._num_tokens)
            if end == self.mark_at:
                self.mark = copied(row.group.cache), end
        return logits[0, -1]

    def rehearse(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Tensor]:
        logits = self.verify_rows(token_ids, trees, is_tried=True)
        self.commit_rows([()] * len(trees), is_tried=True)
        return logits

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], *, is_tried: bool = False
    ) -> list[Tensor]:
        """Return the logits of each row; with `is_tried` any pass can be undone."""
        self._passes: list[_Group] = []
        for row, token, tree in zip(self._rows, token_ids, trees, strict=True):
            row.fed = [*row.again, token, *tree.token_ids.tolist()]
        logits: dict[_Sequence, Tensor] = {}
        for rows in self._groups():
            width, least = len(rows[0].fed), min(len(row.again) for row in rows)
            is_kept = is_tried or least + 1 < width
            group = rows[0].own() if len(rows) == 1 else rows[0].group
            if len(rows) > 1 and (is_kept or group.rows != rows):
                group = _Group(rows, joined([row.own().cache for row in rows]))
            elif is_kept:
                group.before = copied(group.cache, is_short=True)
            self._passes.append(group)
            made = self._feed(group, width - least)
            start = made.shape[1] - width
            for row, of_row in zip(rows, made, strict=True):
                logits[row] = of_row[start + len(row.again) : start + len(row.fed)]
        return [logits[row] for row in self._rows]

    def _groups(self) -> list[list[_Sequence]]:
        """Return the rows of each pass, the widest first."""
        groups: list[list[_Sequence]] = []
        for row in sorted(self._rows, key=lambda row: -len(row.fed)):
            wider = groups[-1] if groups and self._joins else []
            if wider and len(wider[0].fed) - len(row.fed) <= _MOST_PADDING:
                wider.append(row)
            else:
                groups.append([row])
        return groups

    def commit_rows(self, paths: Sequence[Sequence[int]], *, is_tried: bool = False) -> None:
        for row, path in zip(self._rows, paths, strict=True):
            row.again = row.fed[: len(row.again) + len(path) + (not is_tried)]
        for group in self._passes:
            rows, width = group.rows, len(group.rows[0].fed)
            whole = [row for row in rows if len(row.again) == width]
            if len(rows) == 1 and not whole:
                group.cache = restored(group.cache, group.before)
            group.before = None
            for row in whole:
                row.again, row.length, row.group = [], row.length + width, group
                if len(whole) < len(rows):
                    row.own()

    def leave(self, row: int) -> None:
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def committed(self) -> Any:
        """Return the states of the only row, without the last token, for `model.generate`."""
        (row,) = self._rows
        group = row.own()
        if row.again:
            row.fed, row.again = row.again, []
            self._feed(group, 1)
        return group.cache

    def _feed(self, group: _Group, last: int) -> Tensor:
        """Return the logits `(num_rows, num_tokens, vocab_size)` of the last tokens, or of more."""
        rows, width = group.rows, len(group.rows[0].fed)
        padded = [row.fed + [0] * (width - len(row.fed)) for row in rows]
        tokens = torch.tensor(padded, device=self._device)
        asked: dict[str, Any] = {CACHE_NAME: group.cache, "use_cache": True, "return_dict": True}
        lengths = torch.tensor([[row.length] for row in rows], device=self._device)
        most = max(row.length for row in rows)
        if self._takes_positions:
            asked["position_ids"] = lengths + torch.arange(width, device=self._device)
        if any(row.length < most for row in rows):
            slots = torch.arange(most + width, device=self._device)
            asked["attention_mask"] = (slots >= most - lengths).long()
        if self._keeps_logits:
            asked["logits_to_keep"] = last
        model = self._model if width > _FEW or most == 0 else self._of_few_tokens
        output = model(input_ids=tokens, **asked)
        group.cache = output.get(CACHE_NAME)
        if group.cache is None:
            raise ValueError("it keeps its states in no cache")
        return output.logits  # type: ignore[no-any-return]


_padding_errors: WeakKeyDictionary[torch.nn.Module, float] = WeakKeyDictionary()


@torch.no_grad()
def padding_error(model: PreTrainedModel) -> float:
    """Return the change of a model's logits by padding on the left, in parts of their spread."""
    if model not in _padding_errors:
        vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        ids = torch.arange(13, 34, device=model.device)[None] * 1_000_003 % vocab_size
        shown = torch.arange(21, device=model.device)[None] >= 5
        asked = {"attention_mask": shown.long(), "use_cache": False}
        if "position_ids" in inspect.signature(model.forward).parameters:
            asked["position_ids"] = (shown.cumsum(-1) - 1).clamp(min=0)
        found = model(ids, **asked).logits[0, 5:].float()
        plain = model(ids[:, 5:], use_cache=False).logits[0].float()
        _padding_errors[model] = float((found - plain).square().mean(-1).sqrt().max() / plain.std())
    return _padding_errors[model]
