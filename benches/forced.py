"""Recorded answers forced through a model of a real shape with random weights.

The model emits what was recorded, whatever it computes: drafts are accepted as the real model would
accept them, and every forward is the real arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shapes import random_model
from specds import Datastore, FusedConfig, FusedDrafter, PromptLookupDrafter
from specds.bench.generation.measure import Mode, Plan, measure
from specds.bench.generation.report import rows_of
from specds.bench.generation.requests import Request, batches
from specds.bench.generation.ways import PLAIN, Result, Target, Way, baseline_way, own_calls
from specds.bench.harness import tokenizer_of
from specds.bench.transcripts import read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from specds.bench.generation.requests import Batch
    from specds.bench.harness import Row
    from specds.drafters import Drafter


@dataclass(frozen=True)
class Recorded(Request):
    """A prompt with its answer."""

    answer_ids: tuple[int, ...] = ()


class NotAsRecordedError(Exception):
    """A way emitted something else: that must never be."""


def forced(
    target: Target, make: Callable[[], Drafter], budget: Any
) -> Callable[[Batch, dict[str, Any]], Result]:
    """Our loop, which emits what was recorded."""
    call = own_calls(target, make, budget)

    def forced_call(batch: Batch, settings: dict[str, Any]) -> Result:
        answers = [request.answer_ids for request in batch.requests]
        result = call(batch, {**settings, "forced_ids": answers})
        if result.token_ids != [list(answer[: batch.num_tokens]) for answer in answers]:
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
    budget: Any = "auto",
    compiled: bool = True,
) -> list[Row]:
    """Plain decoding and `fused`, as the rows of `specds bench generate`."""
    store = Datastore(datastore)
    store.warm()
    _, loaded = tokenizer_of(tokenizer, [store])
    target = Target(random_model(shape, device=device, dtype=dtype))
    requests = [
        Recorded(each.prompt_ids.tolist(), len(answer), answer)
        for each in read_files(answers, loaded, limit)
        for answer in [tuple(each.completion_ids[:new_tokens].tolist())]
    ]
    # What a model of random weights predicts would not be what the record's has.
    make = partial(FusedDrafter, store, FusedConfig(recycled=False))
    ways = [
        Way(PLAIN, partial(forced, target, PromptLookupDrafter, 0), is_plain=True, is_ours=True),
        Way("fused", partial(forced, target, make, budget), is_ours=True, budget=budget),
    ]
    if compiled:
        ways.insert(0, baseline_way("compiled", target))
    greedy = Mode("forced", {"do_sample": False})
    plan = Plan(target, ways, [greedy], {batch: batches(requests, batch)}, runs, 0, True)
    return rows_of(measure(plan))
