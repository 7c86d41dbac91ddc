"""Ways to generate, measured call by call in turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from specds.bench.generation.target import Batch, BenchTarget, CallResult, Way
from specds.bench.turns import in_turns
from specds.generation.stats import GenerationStats


@dataclass
class Run:
    """Run of a way over all requests: the time of each call, prefill included, and its result."""

    seconds: list[float] = field(default_factory=list)
    results: list[CallResult] = field(default_factory=list)

    @property
    def texts(self) -> list[list[int]]:
        return [text for result in self.results for text in result.token_ids]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.texts)) / sum(self.seconds)

    @property
    def stats(self) -> GenerationStats:
        """Return the statistics of all calls; `model.generate` has none."""
        return sum((each.stats for each in self.results if each.stats), GenerationStats())


@dataclass
class GenerationCell:
    """One way in one mode and one batch size.

    Attributes:
        profile: Run whose timings synchronize with the device; on a CPU the last of `runs`.
        reason: Error of a way that could not run, or None.
    """

    mode: str
    batch: int
    way: Way
    runs: list[Run] = field(default_factory=list)
    profile: Run | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of a measurement.

    Attributes:
        modes: Keyword arguments of `model.generate` by mode.
        batches: Calls by batch size.
        seed: Seed of each call, the same for every way.
        warm_memory: Whether one drafter serves all calls of a run; each run has a new one.
        warm_up: Keyword arguments that override those of a mode while warming up.
    """

    target: BenchTarget
    ways: Sequence[Way]
    modes: Mapping[str, dict[str, Any]]
    batches: dict[int, list[Batch]]
    runs: int
    seed: int
    warm_memory: bool = True
    warm_up: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rounds(self) -> int:
        """Return the rounds of the plan; in each, every way does the same call."""
        calls = sum(len(batches) for batches in self.batches.values())
        return calls * len(self.modes) * (self.runs + self.target.has_queue)


def measure(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> list[GenerationCell]:
    """Measure every way in every mode and batch size.

    `progress` receives the mode before each round of calls.
    """
    cells = []
    for size, batches in plan.batches.items():
        refused = _warm_up(plan, batches)
        for mode, settings in plan.modes.items():
            found = [GenerationCell(mode, size, way, reason=refused.get(way)) for way in plan.ways]
            running = [cell for cell in found if cell.reason is None]
            count = partial(progress, mode)
            for _ in range(plan.runs):
                for cell, run in zip(running, _run(plan, running, settings, count), strict=True):
                    cell.runs.append(run)
                    cell.profile = run
            if plan.target.has_queue:
                ours = [cell for cell in running if cell.way.is_ours]
                profiled = _run(plan, ours, {**settings, "synchronize_timings": True}, count)
                for cell, run in zip(ours, profiled, strict=True):
                    cell.profile = run
            cells += found
    return cells


def batches_of(prompts: Sequence[list[int]], size: int) -> list[Batch]:
    """Split prompts into batches of `size`, without an incomplete last batch.

    Single prompts keep their order. Larger batches have prompts of about the same length.
    """
    if len(prompts) < size:
        raise ValueError(
            f"not enough prompts for a batch of {size}: got {len(prompts)}; pass more prompts or a "
            "smaller --batch"
        )
    ordered = sorted(prompts, key=len) if size > 1 else prompts
    return [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]


def _warm_up(plan: Plan, batches: Sequence[Batch]) -> dict[Way, str]:
    """Do the longest and the shortest call of every way; return the ways that fail, with reasons.

    The longest call sizes the static cache. With CUDA graphs our loop does all calls, because
    drafts need graphs of many sizes.
    """
    ordered = sorted(batches, key=lambda batch: max(map(len, batch)), reverse=True)
    refused: dict[Way, str] = {}
    for way in plan.ways:
        chosen = ordered if way.is_ours and plan.target.has_queue else [ordered[0], ordered[-1]]
        try:
            call = way.start()
            for settings, batch in product(plan.modes.values(), chosen):
                call(batch, {**settings, **plan.warm_up})
        except (ValueError, RuntimeError) as error:  # unsupported by transformers or torch
            refused[way] = " ".join(str(error).split()) or type(error).__name__
    return refused


def _run(
    plan: Plan,
    cells: Sequence[GenerationCell],
    settings: dict[str, Any],
    progress: Callable[[], None],
) -> list[Run]:
    """Do every call once with the way of each cell, in turn."""
    starts = [cell.way.start for cell in cells]
    warm = [start() if plan.warm_memory else None for start in starts]
    runs = [Run() for _ in cells]
    for place, batch in enumerate(plan.batches[cells[0].batch] if cells else ()):
        progress()

        def call(number: int, place: int = place, batch: Batch = batch) -> CallResult:
            plan.target.seed(plan.seed + place)
            return (warm[number] or starts[number]())(batch, settings)

        calls = {number: partial(call, number) for number in range(len(cells))}
        for number, timed in in_turns(calls, place, plan.target.synchronize).items():
            runs[number].seconds.append(timed.seconds)
            runs[number].results.append(timed.result)
    return runs
