"""Recorded answers forced through a model of a real shape with random weights.

The model generates the recorded tokens, whatever it computes. Drafts are accepted as by the real
model, and every forward pass does the real arithmetic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from gpu.figure import Figure
from gpu.shapes import random_model
from specds import Datastore, FusedConfig, FusedDrafter
from specds.bench.generation.measure import Plan, batches_of, measure
from specds.bench.generation.report import rows_of
from specds.bench.generation.target import (
    PLAIN,
    Batch,
    BenchTarget,
    CallResult,
    Way,
    baseline_way,
    own_calls,
)
from specds.bench.harness import ReportRow, tokenizer_of
from specds.bench.transcripts import read_files
from specds.drafters import Drafter
from specds.papers import PromptLookupDrafter
from specds.transformers.verify.inputs import Inputs
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.support import require_support

LARGEST_OUTSIDE, LEAST_OF_COMPILED, LEAST_IN_BATCHES = 0.05, 1.0, 0.98


class RecordedAnswer(list[int]):
    answer_ids: list[int]


class NotAsRecordedError(Exception):
    """A way generated other tokens than the recorded ones."""


class Forces:
    """Mixin of a runner that computes the model's logits, then forces the recorded tokens.

    Attributes:
        texts: Prompt and answer of each row, int64, which CUDA graphs read in place; None forces
            nothing, as when the model is checked.
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


class ForcedRunner(Forces, PackedRunner):
    """Packed verification, forced."""


def forced(
    target: BenchTarget, make: Callable[[], Drafter], max_nodes: Any
) -> Callable[[Batch, dict[str, Any]], CallResult]:
    """Return calls of our loop that check the generated tokens."""
    call = own_calls(target, make, max_nodes)

    def forced_call(batch: Batch, settings: dict[str, Any]) -> CallResult:
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
    options: argparse.Namespace,
    answers: Path,
    datastore: Path,
    batch: int = 1,
    max_nodes: Any = "auto",
) -> list[ReportRow]:
    """Measure the baselines and `fused`; return rows of `specds bench generate`."""
    store = Datastore(datastore)
    store.warm()
    _, tokenizer = tokenizer_of(options.tokenizer, [store])
    model = random_model(options.shape, device=options.device, dtype=options.dtype)
    target, new_tokens = BenchTarget(model, ForcedRunner), options.new_tokens
    Forces.texts = None
    require_support(model, verification=ForcedRunner)
    prompts = []
    for each in read_files([answers], tokenizer, max(options.limit, batch)):
        prompts.append(RecordedAnswer(each.prompt_ids.tolist()))
        prompts[-1].answer_ids = each.completion_ids[:new_tokens].tolist()
    longest = max(len(each) + len(each.answer_ids) for each in prompts)
    num_rows = 1 << (batch - 1).bit_length()
    Forces.texts = torch.zeros(num_rows, longest, dtype=torch.int64, device=model.device)
    # Predictions of random weights are not those of the recorded model.
    make = partial(FusedDrafter, store, FusedConfig(recycled=False))
    ways = [
        Way(PLAIN, partial(forced, target, PromptLookupDrafter, 0), is_plain=True, is_ours=True),
        Way("fused", partial(forced, target, make, max_nodes), is_ours=True, max_nodes=max_nodes),
    ]
    if not options.dry:
        ways.insert(0, baseline_way("compiled", target))
    modes = {"forced": {"do_sample": False, "max_new_tokens": new_tokens}}
    plan = Plan(target, ways, modes, {batch: batches_of(prompts, batch)}, options.runs, 0, True)
    # A shape may have more tokens than the datastore's tokenizer.
    with patch("specds.transformers.request.check_vocabulary"):
        return rows_of(measure(plan))


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Speed on recorded answers, forced through random weights, one by one and in batches."""
    if not options.case:
        yield Figure("speed-up", None, at_least=1, note="no --case was given")
    for answers, datastore, bar in options.case:
        for batch in (1, *options.batches):
            rows = measure_forced(options, Path(answers), Path(datastore), batch)
            name = Path(answers).stem + (f", batch {batch}" if batch > 1 else "")
            yield from _speeds(name, rows, float(bar) if batch == 1 else LEAST_IN_BATCHES)


def _speeds(name: str, rows: list[dict[str, Any]], bar: float) -> Iterator[Figure]:
    """Compare baselines, and drafts with compiled decoding or, in batches, the fastest baseline."""
    plain = {row["name"]: row["tokens_per_s"] for row in rows if row["kind"] != "drafter"}
    for way, rate in plain.items():
        yield Figure(f"{name}: {way}", rate, "tokens/s")
    if plain.get("plain") and plain.get("compiled"):
        ratio = plain["plain"] / plain["compiled"]
        yield Figure(f"{name}: plain over compiled", ratio, "x", at_least=LEAST_OF_COMPILED)
    for row in rows:
        if row["kind"] == "drafter":
            one = row["batch"] == 1 and plain.get("compiled")
            over = "compiled" if one else row["fastest_plain"]
            rate, note = row["tokens_per_s"], row["reason"] or f"over {over}"
            speed_up = None if rate is None else rate / plain[over]
            yield Figure(f"{name}: speed-up", speed_up, "x", at_least=bar, note=note)
            yield Figure(f"{name}: tokens a forward", row["mean_acceptance_length"])
            if row["batch"] == 1:
                outside = row["outside_forward"]
                yield Figure(f"{name}: outside the forward", outside, at_most=LARGEST_OUTSIDE)
