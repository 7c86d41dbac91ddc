"""Chains for models with recurrent layers, whose state no token can be dropped from.

A pass writes such states in place. They are kept before a draft. Where a part of it is rejected,
they are restored, and the accepted tokens are fed again with the next draft: passes become wider,
and none is added.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, cache_utils

from specds._core import TokenTree
from specds.verify.cache import CACHE_NAME
from specds.verify.few_tokens import FewTokens
from specds.verify.generic import CHUNK, LONG_PROMPT, Runner
from specds.verify.states import Kept, copied, joined, part

# With this many tokens to feed again, a pass without a draft makes them part of the states.
_MOST_AGAIN = 8
# The most tokens by which a row is padded to share a pass with others: weights are then read once,
# and the padding is rejected like a draft.
_MOST_PADDING = 8
# Wider passes are those over prompts.
_FEW = 64


@dataclass(eq=False)
class _Row:
    """One sequence.

    Attributes:
        length: Tokens that the states are of.
        again: Committed tokens after these, before the last one.
        cache: The states; None while they are in a group.
        group: A cache of several rows, and these, after a pass in which nothing was rejected.
        kept: Memory for the states before a draft; it holds those of `length` while `is_kept`.
        fed: The tokens of the last pass.
    """

    length: int = 0
    again: list[int] = field(default_factory=list)
    cache: Any = None
    group: tuple[Any, list[_Row]] | None = None
    kept: Kept | None = None
    is_kept: bool = False
    fed: list[int] = field(default_factory=list)

    def own(self) -> Any:
        """Return the row's states in a cache of its own."""
        if self.group is not None:
            cache, rows = self.group
            self.take(part(cache, rows.index(self), self.length))
        return self.cache

    def take(self, cache: Any) -> None:
        self.cache, self.group, self.kept, self.is_kept = cache, None, None, False

    def keep(self) -> None:
        """Keep the states before a pass over the row alone."""
        if self.kept is None:
            self.kept = Kept(self.cache)
        elif not self.is_kept:
            self.kept.keep()
        self.is_kept = True

    def restore(self) -> None:
        assert self.kept is not None
        self.is_kept = self.kept.restore()


class ChainRunner(Runner):
    """Verify chains by the model's own cache and masks: rows of similar width share a pass.

    Attributes:
        mark_at: Tokens after which a pass over a prompt copies the states to `mark`.
    """

    takes_trees = False
    mark_at = 0
    mark: tuple[Any, int] | None = None

    def __init__(self, model: PreTrainedModel, *, num_rows: int = 1, **sizes: int) -> None:
        super().__init__(model, num_rows=num_rows, **sizes)
        self._rows = [_Row() for _ in range(num_rows)]
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._of_few_tokens = FewTokens(model)
        # Whether rows can share a pass: what other classes hold has no order that is known.
        self._joins = False
        # The rows of each pass, and their joined cache.
        self._passes: list[tuple[list[_Row], Any]] = []

    @property
    def lengths(self) -> list[int]:
        return [row.length + len(row.again) for row in self._rows]

    @property
    def waiting(self) -> list[int]:
        return [len(row.again) for row in self._rows]

    def room(self, row: int) -> int:
        return 0 if len(self._rows[row].again) >= _MOST_AGAIN else sys.maxsize

    def load(self, past: Any, length: int) -> None:
        """Give the only row a copy of the states of its first tokens."""
        self._rows[0].take(copied(past))
        self._rows[0].length = length

    def prefill_rows(self, prompts: Sequence[Tensor], chunk_size: int | None = None) -> Tensor:
        known: dict[tuple[int, ...], tuple[_Row, Tensor]] = {}
        logits = []
        for row, prompt in zip(self._rows, prompts, strict=True):
            ids = prompt[0].tolist()
            if (found := known.get(tuple(ids))) is None:
                found = known[tuple(ids)] = row, self._read_prompt(row, ids, chunk_size)
            else:
                row.cache, row.length = copied(found[0].cache), found[0].length
            logits.append(found[1])
        layers = [layer for row in self._rows for layer in row.cache.layers]
        self._joins = all(type(layer).__module__ == cache_utils.__name__ for layer in layers)
        return torch.stack(logits)

    def _read_prompt(self, row: _Row, ids: list[int], chunk_size: int | None = None) -> Tensor:
        """Run the tokens that have no states yet, and return the logits after the last one."""
        num_new = len(ids) - row.length
        step = chunk_size or (num_new if num_new <= LONG_PROMPT else CHUNK)
        ends = {*range(row.length, len(ids), step), len(ids)}
        if row.length < self.mark_at < len(ids):
            ends.add(self.mark_at)
        for start, end in pairwise(sorted(ends)):
            row.fed = ids[start:end]
            logits = self._feed([row], row, 1)
            row.length = end
            if end == self.mark_at:
                self.mark = copied(row.cache), end
        return logits[0, -1]

    def rehearse(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Tensor]:
        again = [row.again for row in self._rows]
        for row in self._rows:
            row.again = []
        logits = self.verify_rows(token_ids, trees, is_tried=True)
        self._settle([0] * len(again))
        for row, tokens in zip(self._rows, again, strict=True):
            row.again = tokens
        return logits

    def verify_rows(
        self, token_ids: Sequence[int], trees: Sequence[TokenTree], *, is_tried: bool = False
    ) -> list[Tensor]:
        """Return the logits of each row; with `is_tried` any pass can be undone."""
        self._passes = []
        for row, token, tree in zip(self._rows, token_ids, trees, strict=True):
            row.fed = [*row.again, token, *tree.token_ids.tolist()]
        nums = {id(row): 1 + len(tree) for row, tree in zip(self._rows, trees, strict=True)}
        logits: dict[int, Tensor] = {}
        for rows in self._groups():
            width = len(rows[0].fed)
            is_kept = is_tried or any(nums[id(row)] > 1 or len(row.fed) < width for row in rows)
            group = rows[0].group
            if len(rows) == 1:
                rows[0].own()
                if is_kept:
                    rows[0].keep()
                whole = rows[0]
            elif is_kept or group is None or group[1] != rows:
                whole = _Row(cache=joined([row.own() for row in rows]))
            else:
                whole = _Row(cache=group[0])
            self._passes.append((rows, whole))
            last = max(width - len(row.fed) + nums[id(row)] for row in rows)
            made = self._feed(rows, whole, last)
            for row, of_row in zip(rows, made, strict=True):
                end = len(of_row) - (width - len(row.fed))
                logits[id(row)] = of_row[end - nums[id(row)] : end]
        return [logits[id(row)] for row in self._rows]

    def _groups(self) -> list[list[_Row]]:
        """Return the rows of each pass, the widest first."""
        groups: list[list[_Row]] = []
        for row in sorted(self._rows, key=lambda row: -len(row.fed)):
            padding = len(groups[-1][0].fed) - len(row.fed) if groups else 0
            if groups and self._joins and padding <= _MOST_PADDING:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        self._settle([1 + len(path) for path in paths])

    def _settle(self, kept: Sequence[int]) -> None:
        """Commit, of the tokens that each row was fed, the known ones and as many as are given."""
        numbers = {id(row): number for row, number in zip(self._rows, kept, strict=True)}
        for rows, whole in self._passes:
            width = len(rows[0].fed)
            known = [len(row.again) + numbers[id(row)] for row in rows]
            if len(rows) > 1 and all(of == width for of in known):
                for row in rows:
                    row.take(None)
                    row.group, row.length, row.again = (whole.cache, rows), row.length + width, []
                continue
            for place, (row, num_known) in enumerate(zip(rows, known, strict=True)):
                is_whole = num_known == width
                if len(rows) > 1 and is_whole:
                    row.take(part(whole.cache, place, row.length + width))
                if not is_whole:
                    if len(rows) == 1:
                        row.restore()
                    row.again = row.fed[:num_known]
                    continue
                row.length, row.again, row.is_kept = row.length + num_known, [], False

    def leave(self, row: int) -> None:
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def committed(self) -> Any:
        """Return the states of the only row, without the last token, for `model.generate`."""
        (row,) = self._rows
        row.own()
        if row.again:
            row.fed, row.again = row.again, []
            self._feed([row], row, 1)
        return row.cache

    def _feed(self, rows: list[_Row], whole: _Row, last: int) -> Tensor:
        """Return the logits `(num_rows, num_tokens, vocab_size)` of the last tokens, or of more."""
        width, most = len(rows[0].fed), max(row.length for row in rows)
        padded = [row.fed + [0] * (width - len(row.fed)) for row in rows]
        tokens = torch.tensor(padded, device=self._device)
        asked: dict[str, Any] = {CACHE_NAME: whole.cache, "use_cache": True, "return_dict": True}
        lengths = torch.tensor([row.length for row in rows], device=self._device)[:, None]
        if self._takes_positions:
            asked["position_ids"] = lengths + torch.arange(width, device=self._device)
        if any(row.length < most for row in rows):
            slots = torch.arange(most + width, device=self._device)
            asked["attention_mask"] = (slots >= most - lengths).long()
        if self._keeps_logits:
            asked["logits_to_keep"] = last
        model = self._model if width > _FEW or most == 0 else self._of_few_tokens
        output = model(input_ids=tokens, **asked)
        if (cache := output.get(CACHE_NAME)) is None:
            raise ValueError("it keeps its states in no cache")
        whole.cache = cache
        logits: Tensor = output.logits
        return logits


_padding_errors: WeakKeyDictionary[torch.nn.Module, float] = WeakKeyDictionary()


@torch.no_grad()
def padding_error(model: PreTrainedModel) -> float:
    """Return the change of a model's logits by padding on the left, in parts of their spread."""
    if model in _padding_errors:
        return _padding_errors[model]
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.arange(13, 29, device=model.device)[None] * 1_000_003 % vocab_size
    shown = torch.arange(21, device=model.device)[None] >= 5
    padded = torch.nn.functional.pad(ids, (5, 0))
    plain = model(ids, use_cache=False).logits[0].float()
    positions = (shown.cumsum(-1) - 1).clamp(min=0)
    asked = {"attention_mask": shown.long(), "use_cache": False}
    if "position_ids" in inspect.signature(model.forward).parameters:
        asked["position_ids"] = positions
    found = model(padded, **asked).logits[0, 5:].float()
    error = (found - plain).square().mean(dim=-1).sqrt().max() / plain.std()
    return _padding_errors.setdefault(model, float(error))
