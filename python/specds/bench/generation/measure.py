"""Ways to generate, each over the same requests in turn: a drift of the machine hits all."""

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
"""Prompts that are completed in one call, as token ids."""


class Result(NamedTuple):
    """The new tokens of each prompt, and if our loop ran its statistics, and what was drafted."""

    token_ids: list[list[int]]
    stats: GenerationStats | None = None
    drafted: Sequence[list[bool]] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """A way to generate.

    Attributes:
        start: Starts a run with a new drafter; returns the function that does its calls, which
            takes a batch and arguments of `model.generate`.
        is_plain: Whether it makes one token a forward.
        is_ours: Whether it is our loop, which reports its phases.
        max_nodes: Nodes of a draft; None for `model.generate`.
    """

    name: str
    start: Callable[[], Callable[[Batch, dict[str, Any]], Result]]
    is_plain: bool = False
    is_ours: bool = False
    max_nodes: int | Literal["auto"] | None = None
    datastore: Datastore | None = None


@dataclass(frozen=True)
class Target:
    """The model, and how drafts are verified on it."""

    model: PreTrainedModel
    verification: str = "auto"

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts padded on the left, int64 `(num_rows, length)`, and their mask."""
        length = max(map(len, batch))
        ids = [[0] * (length - len(prompt)) + prompt for prompt in batch]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in batch]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def emitted(self, sequences: torch.Tensor, prompt_length: int) -> list[list[int]]:
        """The new tokens of each row, up to its end of sequence."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [eos] if isinstance(eos, int) else eos or []
        rows = sequences[:, prompt_length:].tolist()
        lengths = [
            next((n for n, token in enumerate(row, 1) if token in ends), None) for row in rows
        ]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def own_calls(
    target: Target, make: Callable[[], Drafter], max_nodes: int | Literal["auto"]
) -> Callable[[Batch, dict[str, Any]], Result]:
    """Calls of our `generate` with a new drafter."""
    drafter = make()

    def call(batch: Batch, settings: dict[str, Any]) -> Result:
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
        return Result(emitted, output.stats, output.drafted_by_row)

    return call


def baseline_way(name: str, target: Target) -> Way:
    if name == PLAIN:
        start = partial(own_calls, target, PromptLookupDrafter, 0)
        return Way(name, start, is_plain=True, is_ours=True, max_nodes=0)
    static, compilation = {"cache_implementation": "static"}, CompileConfig()
    # Transformers compiles on a GPU alone unless it is asked so.
    compilation._compile_all_devices = target.model.device.type == "cpu"  # type: ignore[assignment]
    arguments: dict[str, dict[str, Any]] = {
        "generate": {},
        "static": static | {"disable_compile": True},
        "compiled": static | {"compile_config": compilation},
        PROMPT_LOOKUP: {"prompt_lookup_num_tokens": 10},
    }
    run: Any = target.model.generate

    def call(batch: Batch, settings: dict[str, Any]) -> Result:
        ids, mask = target.inputs(batch)
        given = arguments[name] | settings
        sequences = run(ids, attention_mask=mask, pad_token_id=0, **given)
        return Result(target.emitted(sequences, ids.shape[1]))

    return Way(name, lambda: call, is_plain=name != PROMPT_LOOKUP)


def drafter_way(
    name: str,
    target: Target,
    make: Callable[[], Drafter],
    max_nodes: int | Literal["auto"],
    datastore: Datastore | None = None,
) -> Way:
    """Return the way that generates with drafters made by `make`."""
    start = partial(own_calls, target, make, max_nodes)
    return Way(name, start, is_ours=True, max_nodes=max_nodes, datastore=datastore)


@dataclass
class Run:
    """One way once over all requests: the time of each call, prefill included, and its result."""

    seconds: list[float] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def texts(self) -> list[list[int]]:
        return [text for result in self.results for text in result.token_ids]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.texts)) / sum(self.seconds)

    @property
    def stats(self) -> GenerationStats:
        """The statistics of all calls of our loop; of `model.generate` there are none."""
        return sum((each.stats for each in self.results if each.stats), GenerationStats())


@dataclass
class Cell:
    """One way in one mode and one size of batch.

    Attributes:
        profile: A run whose times wait for the device; on a CPU the last of `runs`.
        reason: Why the way could not run; None if it did.
    """

    mode: str
    batch: int
    way: Way
    runs: list[Run] = field(default_factory=list)
    profile: Run | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        modes: How tokens are chosen: keyword arguments of `model.generate`, by name.
        batches: The calls, by size of batch.
        seed: Every way starts a call from the same state of the random generator.
        warm_memory: Whether one drafter serves all calls of a run; no run profits from another.
        warm_up: What is different in calls that warm up.
    """

    target: Target
    ways: Sequence[Way]
    modes: Mapping[str, dict[str, Any]]
    batches: dict[int, list[Batch]]
    runs: int
    seed: int
    warm_memory: bool = True
    warm_up: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_queue(self) -> bool:
        """Whether phases can only be timed by waiting for the device, which takes time itself."""
        return self.target.model.device.type != "cpu"

    @property
    def num_rounds(self) -> int:
        """Rounds of the plan; in a round every way does the same call."""
        calls = sum(len(batches) for batches in self.batches.values())
        return calls * len(self.modes) * (self.runs + self.has_queue)


def measure(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> list[Cell]:
    """Measures every way in every mode and size of batch.

    `progress` gets the mode before each round of calls.
    """
    cells = []
    for size, batches in plan.batches.items():
        refused = _warm_up(plan, batches)
        for mode, settings in plan.modes.items():
            found = [Cell(mode, size, way, reason=refused.get(way)) for way in plan.ways]
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
    """Cuts prompts into batches of `size`; an incomplete last batch is left out.

    Single prompts keep their order. Larger batches are made of prompts of about the same length.
    """
    if len(prompts) < size:
        raise ValueError(
            f"{len(prompts)} prompts make no batch of {size}: give more prompts, or a smaller "
            "--batch"
        )
    ordered = sorted(prompts, key=len) if size > 1 else prompts
    return [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]


def _warm_up(plan: Plan, batches: Sequence[Batch]) -> dict[Way, str]:
    """Lets every way do the longest and the shortest call; returns those that fail, and why.

    The longest sizes the static cache. Where passes are recorded as CUDA graphs, our loop does all
    calls, as drafts need passes of many sizes.
    """
    ordered = sorted(batches, key=lambda batch: max(map(len, batch)), reverse=True)
    refused: dict[Way, str] = {}
    for way in plan.ways:
        chosen = ordered if way.is_ours and plan.has_queue else [ordered[0], ordered[-1]]
        try:
            call = way.start()
            for settings, batch in product(plan.modes.values(), chosen):
                call(batch, {**settings, **plan.warm_up})
        except (ValueError, RuntimeError) as error:  # whatever transformers or torch cannot do
            refused[way] = " ".join(str(error).split()) or type(error).__name__
    return refused


def _run(
    plan: Plan, cells: Sequence[Cell], settings: dict[str, Any], progress: Callable[[], None]
) -> list[Run]:
    """Lets the way of each cell do every call once, call by call."""
    starts = [cell.way.start for cell in cells]
    calls = [start() if plan.warm_memory else None for start in starts]
    runs, device = [Run() for _ in cells], plan.target.model.device
    for place, batch in enumerate(plan.batches[cells[0].batch] if cells else ()):
        progress()
        for start, call, run in zip(starts, calls, runs, strict=True):
            torch.manual_seed(plan.seed + place)
            synchronise(device)
            started = perf_counter()
            result = (call or start())(batch, settings)
            synchronise(device)
            run.seconds.append(perf_counter() - started)
            run.results.append(result)
    return runs


def synchronise(device: torch.device) -> None:
    """Waits until the device has done what is in its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
