"""Ways to generate, measured call by call in turn, so that a drift of the machine affects all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from transformers import CompileConfig, PreTrainedModel

from specds._core import Datastore
from specds.decoding.stats import GenerationStats
from specds.drafters import Drafter, PromptLookupDrafter
from specds.generation import generate

PLAIN, PROMPT_LOOKUP = "plain", "transformers-prompt-lookup"
Batch: TypeAlias = "Sequence[list[int]]"
"""Prompts of one call, as token ids."""


class CallResult(NamedTuple):
    """New tokens of each prompt; of our loop also its statistics, and which tokens were drafted."""

    token_ids: list[list[int]]
    stats: GenerationStats | None = None
    drafted: Sequence[list[bool]] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """Way to generate.

    Attributes:
        start: Starts a run with a new drafter; returns a function of a batch and arguments of
            `model.generate`, which does a call.
        is_plain: Whether it generates one token per forward pass.
        is_ours: Whether it is our loop, which reports its phases.
        max_nodes: Nodes of a draft; None for `model.generate`.
    """

    name: str
    start: Callable[[], Callable[[Batch, dict[str, Any]], CallResult]]
    is_plain: bool = False
    is_ours: bool = False
    max_nodes: int | Literal["auto"] | None = None
    datastore: Datastore | None = None


@dataclass(frozen=True)
class BenchTarget:
    model: PreTrainedModel
    verification: str = "auto"

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the prompts padded on the left, int64 `(num_rows, length)`, and their mask."""
        length = max(map(len, batch))
        ids = [[0] * (length - len(prompt)) + prompt for prompt in batch]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in batch]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def emitted(self, sequences: torch.Tensor, prompt_length: int) -> list[list[int]]:
        """Return the new tokens of each row, up to its end of sequence."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [eos] if isinstance(eos, int) else eos or []
        rows = sequences[:, prompt_length:].tolist()
        lengths = [
            next((n for n, token in enumerate(row, 1) if token in ends), None) for row in rows
        ]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def own_calls(
    target: BenchTarget, make: Callable[[], Drafter], max_nodes: int | Literal["auto"]
) -> Callable[[Batch, dict[str, Any]], CallResult]:
    """Return a function that calls our `generate` with a new drafter."""
    drafter = make()

    def call(batch: Batch, settings: dict[str, Any]) -> CallResult:
        ids, mask = target.inputs(batch)
        output = generate(
            target.model,
            ids,
            drafter,
            max_nodes=max_nodes,
            verification=target.verification,
            attention_mask=mask,
            pad_token_id=0,
            **settings,
        )
        emitted = target.emitted(output.sequences, ids.shape[1])
        return CallResult(emitted, output.stats, output.drafted_by_row)

    return call


def baseline_way(name: str, target: BenchTarget) -> Way:
    if name == PLAIN:
        start = partial(own_calls, target, PromptLookupDrafter, 0)
        return Way(name, start, is_plain=True, is_ours=True, max_nodes=0)
    static, compilation = {"cache_implementation": "static"}, CompileConfig()
    # Transformers compiles only on a GPU by default.
    compilation._compile_all_devices = target.model.device.type == "cpu"  # type: ignore[assignment]
    arguments: dict[str, dict[str, Any]] = {
        "generate": {},
        "static": static | {"disable_compile": True},
        "compiled": static | {"compile_config": compilation},
        PROMPT_LOOKUP: {"prompt_lookup_num_tokens": 10},
    }
    run: Any = target.model.generate

    def call(batch: Batch, settings: dict[str, Any]) -> CallResult:
        ids, mask = target.inputs(batch)
        given = arguments[name] | settings
        sequences = run(ids, attention_mask=mask, pad_token_id=0, **given)
        return CallResult(target.emitted(sequences, ids.shape[1]))

    return Way(name, lambda: call, is_plain=name != PROMPT_LOOKUP)


def drafter_way(
    name: str,
    target: BenchTarget,
    make: Callable[[], Drafter],
    max_nodes: int | Literal["auto"],
    datastore: Datastore | None = None,
) -> Way:
    start = partial(own_calls, target, make, max_nodes)
    return Way(name, start, is_ours=True, max_nodes=max_nodes, datastore=datastore)


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
    def has_queue(self) -> bool:
        """Return whether timing a phase needs a synchronization, which costs time itself."""
        return self.target.model.device.type != "cpu"

    @property
    def num_rounds(self) -> int:
        """Return the rounds of the plan; in each, every way does the same call."""
        calls = sum(len(batches) for batches in self.batches.values())
        return calls * len(self.modes) * (self.runs + self.has_queue)


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
            if plan.has_queue:
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
        chosen = ordered if way.is_ours and plan.has_queue else [ordered[0], ordered[-1]]
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
    calls = [start() if plan.warm_memory else None for start in starts]
    runs, device = [Run() for _ in cells], plan.target.model.device
    for place, batch in enumerate(plan.batches[cells[0].batch] if cells else ()):
        progress()
        for start, call, run in zip(starts, calls, runs, strict=True):
            torch.manual_seed(plan.seed + place)
            synchronize(device)
            started = perf_counter()
            result = (call or start())(batch, settings)
            synchronize(device)
            run.seconds.append(perf_counter() - started)
            run.results.append(result)
    return runs


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
