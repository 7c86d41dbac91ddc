"""Recorded answers forced through a model of a real shape with random weights.

The model emits what was recorded, whatever it computes: drafts are accepted as the real model would
accept them, and every forward is the real arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from gpu.shapes import random_model
from specds import Datastore, FusedConfig, FusedDrafter, PromptLookupDrafter
from specds.bench.generation.measure import (
    PLAIN,
    Batch,
    Plan,
    Result,
    Target,
    Way,
    baseline_way,
    batches_of,
    measure,
    own_calls,
)
from specds.bench.generation.report import rows_of
from specds.bench.harness import Row, tokenizer_of
from specds.bench.transcripts import read_files
from specds.verify import PackedRunner
from specds.verify.support import require_support

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from specds.drafters import Drafter
    from specds.verify.inputs import Inputs


class Recorded(list[int]):
    """A prompt with its answer."""

    answer_ids: list[int]


class NotAsRecordedError(Exception):
    """A way emitted something else: that must never be."""


class Forces:
    """A runner that computes what the model computes, and whose logits say what was recorded.

    Attributes:
        texts: Prompt and answer of each row, int64. Recordings read them where they lie. While
            there are none, as when the model is checked, nothing is forced.
    """

    texts: torch.Tensor | None = None

    def prefill_rows(
        self, prompts: Sequence[torch.Tensor], chunk_size: int | None = None
    ) -> torch.Tensor:
        logits = super().prefill_rows(prompts, chunk_size)
        if self.texts is None:
            return logits
        ends = torch.tensor([[prompt.shape[1]] for prompt in prompts], device=logits.device)
        return logits.scatter(1, self.texts[: len(ends)].gather(1, ends), torch.inf)

    def _pass(self, inputs: Inputs, end: int) -> torch.Tensor:
        logits = super()._pass(inputs, end)
        if self.texts is None:
            return logits
        places = inputs.lengths[:, None] + inputs.depths + 1
        following = self.texts[: len(places)].gather(1, places.clamp(max=self.texts.shape[1] - 1))
        return logits.scatter(2, following[..., None], torch.inf)

    def leave(self, row: int) -> None:
        self.texts[row] = self.texts[len(self.cache.lengths) - 1]
        super().leave(row)


class Forced(Forces, PackedRunner):
    """The fast way to verify, forced."""


def forced(
    target: Target, make: Callable[[], Drafter], max_nodes: Any
) -> Callable[[Batch, dict[str, Any]], Result]:
    """Our loop, which emits what was recorded."""
    call = own_calls(target, make, max_nodes)

    def forced_call(batch: Batch, settings: dict[str, Any]) -> Result:
        for row, prompt in enumerate(batch):
            text = torch.tensor([*prompt, *prompt.answer_ids])
            Forces.texts[row, : len(text)] = text
        shortest = min(len(prompt.answer_ids) for prompt in batch)
        result = call(batch, settings | {"max_new_tokens": shortest})
        answers = [prompt.answer_ids[:shortest] for prompt in batch]
        if result.token_ids != answers:
            raise NotAsRecordedError(f"{result.token_ids} emitted for {answers}")
        return result

    return forced_call


def measure_forced(
    answers: Sequence[Path],
    datastore: Path,
    *,
    shape: str,
    device: str,
    dtype: str,
    batch: int,
    limit: int,
    new_tokens: int,
    runs: int,
    tokenizer: str | None = None,
    max_nodes: Any = "auto",
    compiled: bool = True,
) -> list[Row]:
    """Plain decoding and `fused`, as the rows of `specds bench generate`."""
    store = Datastore(datastore)
    store.warm()
    _, loaded = tokenizer_of(tokenizer, [store])
    target = Target(random_model(shape, device=device, dtype=dtype), Forced)
    Forces.texts = None
    require_support(target.model, verification=Forced)
    prompts = []
    for each in read_files(answers, loaded, limit):
        prompts.append(Recorded(each.prompt_ids.tolist()))
        prompts[-1].answer_ids = each.completion_ids[:new_tokens].tolist()
    longest = max(len(each) + len(each.answer_ids) for each in prompts)
    num_rows = 1 << (batch - 1).bit_length()
    Forces.texts = torch.zeros(num_rows, longest, dtype=torch.int64, device=target.model.device)
    # What a model of random weights predicts would not be what the record's has.
    make = partial(FusedDrafter, store, FusedConfig(recycled=False))
    ways = [
        Way(PLAIN, partial(forced, target, PromptLookupDrafter, 0), is_plain=True, is_ours=True),
        Way("fused", partial(forced, target, make, max_nodes), is_ours=True, max_nodes=max_nodes),
    ]
    if compiled:
        ways.insert(0, baseline_way("compiled", target))
    modes = {"forced": {"do_sample": False, "max_new_tokens": new_tokens}}
    plan = Plan(target, ways, modes, {batch: batches_of(prompts, batch)}, runs, 0, True)
    # Random weights know no tokenizer: a shape may have more tokens than the datastore.
    with patch("specds.generation.request.check_vocabulary"):
        return rows_of(measure(plan))
