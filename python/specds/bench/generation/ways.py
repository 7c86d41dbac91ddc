"""What is generated, and by whom: `model.generate` in several ways, and our own loop."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import CompileConfig, LogitsProcessor, LogitsProcessorList

from specds.bench.engines import Engine, engines_of
from specds.demo.held_out import prompts
from specds.drafters import DrafterName, PromptLookupDrafter, make_drafter
from specds.generation import generate
from specds.hierarchy.config import HierarchyName
from specds.hierarchy.drafter import HierarchyDrafter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import ExitStack

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds._core import Datastore
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter, DrafterInputs
    from specds.stats import GenerationStats

HELD_OUT_SOURCE = "held-out"
"""The group of the demo's prompts."""

USUAL_NEW_TOKENS = 128


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        source: The name of the group that it belongs to.
        prompt_ids: At least one token.
        num_tokens: The most tokens to generate.
        answer_ids: What is emitted whatever the model says; None leaves it to the model.
    """

    source: str
    prompt_ids: list[int]
    num_tokens: int
    answer_ids: list[int] | None = None


@dataclass(frozen=True)
class Batch:
    """Requests of one group that are generated in one call."""

    requests: tuple[Request, ...]

    @property
    def source(self) -> str:
        """The group of its requests."""
        return self.requests[0].source

    @property
    def num_tokens(self) -> int:
        """The tokens to generate for each: what the shortest of them asks for."""
        return min(request.num_tokens for request in self.requests)

    @property
    def length(self) -> int:
        """The most tokens of a sequence, prompt included."""
        return max(len(request.prompt_ids) for request in self.requests) + self.num_tokens


def requests_of(
    transcripts: Iterable[Transcript], *, forced: bool, max_new_tokens: int | None
) -> list[Request]:
    """The prompts of recorded answers, with the answers where they are forced.

    Where answers are forced, the whole of them is emitted unless `max_new_tokens` is fewer.
    """
    requests = []
    for transcript in transcripts:
        prompt_ids, answer = transcript.prompt_ids.tolist(), None
        most = max_new_tokens or USUAL_NEW_TOKENS
        if forced:
            answer = transcript.completion_ids.tolist()[:max_new_tokens]
            most = len(answer)
        requests.append(Request(transcript.source, prompt_ids, most, answer))
    return requests


def held_out_requests(
    tokenizer: PreTrainedTokenizerBase, count: int, seed: int, max_new_tokens: int | None
) -> list[Request]:
    """Prompts of modules that the demo's models and its datastore have not seen."""
    most = max_new_tokens or USUAL_NEW_TOKENS
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts(count, seed=seed)]
    return [Request(HELD_OUT_SOURCE, prompt_ids, most) for prompt_ids in ids]


def batches(requests: Sequence[Request], size: int) -> list[Batch]:
    """Cuts each group into calls of `size` requests; the last ones that fill none are left out.

    Single requests keep their order. Larger batches are made of requests that ask for about as many
    tokens, so that a forced batch, which is as long as its shortest answer, loses little.

    Raises:
        ValueError: A group has too few requests for one call.
    """
    made = []
    for source, members in groupby(requests, key=lambda request: request.source):
        group = list(members)
        if size > 1:
            group.sort(key=lambda request: (request.num_tokens, len(request.prompt_ids)))
        if len(group) < size:
            raise ValueError(
                f"{len(group)} prompts of `{source}` make no batch of {size}: give more prompts, "
                "or a smaller --batch"
            )
        starts = range(0, len(group) - size + 1, size)
        made += [Batch(tuple(group[start : start + size])) for start in starts]
    return made


class Baseline(str, Enum):
    """What drafters are held against.

    ``generate``: `model.generate` as it is. ``static``: the same with a static cache.
    ``compiled``: that compiled by torch, with CUDA graphs on a GPU. ``plain``: the loop of this
    package without drafts. ``transformers-prompt-lookup``: the drafts of transformers itself, up to
    10 tokens from the prompt.
    """

    GENERATE = "generate"
    STATIC = "static"
    COMPILED = "compiled"
    PLAIN = "plain"
    PROMPT_LOOKUP = "transformers-prompt-lookup"

    @property
    def is_plain(self) -> bool:
        """Whether it makes one token a forward."""
        return self is not Baseline.PROMPT_LOOKUP


@dataclass(frozen=True)
class Job:
    """One call.

    Attributes:
        batch: The prompts.
        num_tokens: The most tokens to generate for each.
        settings: How tokens are chosen, in the words of `model.generate`.
        profile: As in `specds.generate`.
    """

    batch: Batch
    num_tokens: int
    settings: dict[str, Any]
    profile: bool = False


@dataclass(frozen=True)
class Result:
    """What a call gave: the new tokens of each prompt, and what drafts came to."""

    token_ids: list[list[int]]
    stats: GenerationStats | None = None


@dataclass(frozen=True)
class Way:
    """A way to generate.

    Attributes:
        name: Of the baseline or the drafter.
        start: Makes what does the jobs of one run, which has learned nothing yet.
        baseline: Which it is; None where it drafts.
        budget: Nodes of a draft; None where there are none to choose.
        datastore: What it drafts from, if anything.
    """

    name: str
    start: Callable[[], Callable[[Job], Result]]
    baseline: Baseline | None = None
    budget: int | Literal["auto"] | None = None
    datastore: Datastore | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it makes one token a forward."""
        return self.baseline is not None and self.baseline.is_plain

    @property
    def tells_times(self) -> bool:
        """Whether it is our loop, which knows where its time goes."""
        return self.baseline in (None, Baseline.PLAIN)


@dataclass(frozen=True)
class Target:
    """The model, and how drafts are verified on it."""

    model: PreTrainedModel
    verification: str = "auto"
    forced: bool = False
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, model: PreTrainedModel, verification: str, *, forced: bool) -> Target:
        """Reads the model's own end of sequence, and takes it away where answers are forced."""
        if forced:
            model.generation_config.eos_token_id = None
        eos = getattr(model.generation_config, "eos_token_id", None)
        ids = [eos] if isinstance(eos, int) else eos or []
        return cls(model, verification, forced, frozenset(ids))

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts padded on the left, int64 `(num_rows, length)`, and their mask."""
        prompts = [request.prompt_ids for request in batch.requests]
        length = max(map(len, prompts))
        ids = [[0] * (length - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def emitted(self, sequences: torch.Tensor, prompt_length: int) -> list[list[int]]:
        """The new tokens of each row, up to its end of sequence."""
        rows = sequences[:, prompt_length:].tolist()
        return [self._until_end(row) for row in rows]

    def _until_end(self, row: list[int]) -> list[int]:
        ends = (place + 1 for place, token in enumerate(row) if token in self.eos_token_ids)
        return row[: next(ends, len(row))]


class _Forced(LogitsProcessor):
    """Makes the recorded token the likeliest, whatever the model says."""

    def __init__(self, prompt_length: int, answers: Sequence[Sequence[int]]) -> None:
        self._prompt_length = prompt_length
        self._answers = answers

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self._prompt_length
        for row, answer in enumerate(self._answers):
            if place < len(answer):
                scores[row, answer[place]] = torch.inf
        return scores


def _library(
    target: Target, arguments: dict[str, Any], *, follows: bool
) -> Callable[[Job], Result]:
    """Calls `model.generate`; `follows`: where answers are forced, its time depends on them."""
    run: Any = target.model.generate

    def call(job: Job) -> Result:
        ids, mask = target.inputs(job.batch)
        processors = LogitsProcessorList()
        if target.forced and follows:
            answers = [request.answer_ids or () for request in job.batch.requests]
            processors.append(_Forced(ids.shape[1], answers))
        sequences = run(
            ids,
            attention_mask=mask,
            max_new_tokens=job.num_tokens,
            pad_token_id=0,
            logits_processor=processors,
            **arguments,
            **job.settings,
        )
        return Result(target.emitted(sequences, ids.shape[1]))

    return call


def _own(
    target: Target, make: Callable[[], Drafter], budget: int | Literal["auto"]
) -> Callable[[Job], Result]:
    """Calls our `generate` with a new drafter."""
    drafter = make()

    def call(job: Job) -> Result:
        ids, mask = target.inputs(job.batch)
        forced: dict[str, Any] = {}
        if target.forced:
            forced["forced_ids"] = [request.answer_ids for request in job.batch.requests]
        output = generate(
            target.model,
            ids,
            drafter,
            budget=budget,
            verification=target.verification,
            profile=job.profile,
            attention_mask=mask,
            max_new_tokens=job.num_tokens,
            pad_token_id=0,
            **forced,
            **job.settings,
        )
        return Result(target.emitted(output.sequences, ids.shape[1]), output.stats)

    return call


def _compilation(device: torch.device) -> CompileConfig:
    config = CompileConfig()
    # Transformers compiles on a GPU alone unless it is asked so.
    config._compile_all_devices = device.type == "cpu"  # type: ignore[assignment]
    return config


def baseline_way(baseline: Baseline, target: Target) -> Way:
    """The way of a baseline."""
    if baseline is Baseline.PLAIN:
        start = partial(_own, target, PromptLookupDrafter, 0)
        return Way(baseline.value, start, baseline, budget=0)
    static = {"cache_implementation": "static"}
    arguments: dict[Baseline, dict[str, Any]] = {
        Baseline.GENERATE: {},
        Baseline.STATIC: static | {"disable_compile": True},
        Baseline.COMPILED: static | {"compile_config": _compilation(target.model.device)},
        Baseline.PROMPT_LOOKUP: {"prompt_lookup_num_tokens": 10},
    }
    call = _library(target, arguments[baseline], follows=not baseline.is_plain)
    return Way(baseline.value, lambda: call, baseline)


def usual_baselines(device: torch.device) -> list[Baseline]:
    """All of them; on a CPU without the compiled one, which takes long to start."""
    return [b for b in Baseline if b is not Baseline.COMPILED or device.type != "cpu"]


def drafter_ways(
    names: Sequence[DrafterName | HierarchyName],
    own: DrafterInputs,
    budgets: Sequence[int | Literal["auto"]],
    datastores: Sequence[Datastore],
    target: Target,
    stack: ExitStack,
) -> list[Way]:
    """Each drafter with each datastore, or once where it takes none, at each budget.

    `stack` keeps open what the drafters are made of.
    """
    values = [name.value for name in names if isinstance(name, DrafterName)]
    engines = engines_of(values, datastores, own)
    hierarchies = [name for name in names if isinstance(name, HierarchyName)]
    engines += [engine for name in hierarchies for engine in _hierarchies(name, own, datastores)]
    ways = []
    for engine in engines:
        make = stack.enter_context(engine.open())
        for budget in budgets:
            start = partial(_own, target, make, budget)
            ways.append(Way(engine.name, start, budget=budget, datastore=engine.datastore))
    return ways


def _hierarchies(
    name: HierarchyName, own: DrafterInputs, datastores: Sequence[Datastore]
) -> list[Engine]:
    """A hierarchy with the fused drafter of each datastore beneath, or of models alone."""
    if own.model is None or own.tokenizer is None:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")
    models = name.load(own.model, own.tokenizer)

    def make(datastore: Datastore | None) -> Drafter:
        inputs = replace(own, datastore=datastore)
        beneath = None if datastore is None else make_drafter("fused", inputs)
        return HierarchyDrafter.over(beneath, models, name.config)

    def engine(datastore: Datastore | None) -> Engine:
        return Engine(name.value, datastore, lambda: nullcontext(partial(make, datastore)))

    return [engine(datastore) for datastore in datastores] or [engine(None)]
