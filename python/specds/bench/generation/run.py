"""The measurement that the command line asks for, from names and paths to rows."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from specds._core import Datastore, __version__
from specds.bench.generation.curve import num_passes, verification_costs
from specds.bench.generation.measure import Mode, Plan, measure
from specds.bench.generation.report import rows_of
from specds.bench.generation.requests import batches, held_out_requests, requests_of
from specds.bench.generation.shapes import random_model
from specds.bench.generation.ways import (
    Baseline,
    Target,
    baseline_way,
    drafter_ways,
    usual_baselines,
)
from specds.bench.transcripts import check_groups, read_files
from specds.demo.held_out import build_stdlib
from specds.drafters import DrafterInputs, DrafterName, read_weights, require_inputs
from specds.hierarchy.registry import drafter_name
from specds.loading import load_model, load_tokenizer, resolve_placement
from specds.tokenization import check_tokenizer
from specds.verify.support import require_verification

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.bench.generation.report import Row
    from specds.bench.generation.requests import Request

    Progress = Callable[[str, int], None]
    """Told what is running before each call, and how many calls there are in all."""

USUAL_PROMPTS = 12


@dataclass(frozen=True)
class GenerateOptions:
    """What to measure.

    Attributes:
        model: The name of the target; ``demo`` needs neither transcripts nor a datastore.
        shape: Or that of a real shape, with random weights.
        transcripts: Files of recorded answers; their prompts are completed.
        datastores: Paths; a drafter that takes one runs with each of them.
        tokenizer: The name of that of the transcripts; None is the model's or the datastore's.
        drafters: Names of drafters.
        weights: What the fused drafter starts from, as `read_weights` takes it.
        baselines: What they are held against; None is all that start quickly.
        budgets: The most nodes of a draft, or ``auto``.
        modes: ``greedy``, ``sampled``; where answers are forced there is nothing to choose.
        temperature: Of the sampled mode.
        forced: Emit the recorded answers, whatever the model says.
        max_new_tokens: For each prompt; None is 128, or the whole answer where it is forced.
        limit: Prompts of a file at most.
        runs: How often all is measured.
        batches: Prompts a call.
        verification: How drafts are verified, as in `specds.generate`.
        contexts: Where passes are timed by their nodes; none leaves that out.
        num_nodes: Nodes of these passes.
        device: As in `load_model`.
        dtype: As in `load_model`.
        seed: Of the sampling, and of the demo's prompts.
        warm_memory: Whether one drafter serves all requests of a run.
    """

    model: str | None = None
    shape: str | None = None
    transcripts: Sequence[Path] = ()
    datastores: Sequence[Path] = ()
    tokenizer: str | None = None
    drafters: Sequence[str] = ("fused",)
    weights: str | None = None
    baselines: Sequence[str] | None = None
    budgets: Sequence[int | Literal["auto"]] = ("auto",)
    modes: Sequence[str] = ("greedy", "sampled")
    temperature: float = 0.7
    forced: bool = False
    max_new_tokens: int | None = None
    limit: int | None = None
    runs: int = 3
    batches: Sequence[int] = (1,)
    verification: str = "auto"
    contexts: Sequence[int] = (512,)
    num_nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    warm_memory: bool = True

    @property
    def is_demo(self) -> bool:
        """Whether the demo's own prompts are completed."""
        return self.model == "demo" and not self.transcripts

    def check(self) -> None:
        """Refuses what cannot be run, before anything is loaded.

        Raises:
            ValueError: Naming the option.
        """
        if (self.model is None) == (self.shape is None):
            raise ValueError("no target: give a model by --model, or a real shape by --shape")
        if self.shape is not None and not self.forced:
            raise ValueError("a --shape has random weights and writes nonsense: add --forced")
        if not (self.transcripts or self.is_demo):
            raise ValueError("no prompts: give recorded answers by --transcripts")
        if self.forced and not self.transcripts:
            raise ValueError("no answers to force: give them by --transcripts")
        if self.runs < 1:
            raise ValueError(f"runs must be at least 1, got {self.runs}")
        for size in self.batches:
            if size < 1:
                raise ValueError(f"a batch must hold at least 1 prompt, got {size}")
        names = [drafter_name(name) for name in self.drafters]
        _check_baselines(self.baselines or ())
        _check_modes(self.modes)
        require_verification(self.verification)
        given = bool(self.datastores) or self.is_demo
        for name in names:
            if isinstance(name, DrafterName):
                require_inputs(name, datastore=given, model=True)


def _check_baselines(names: Sequence[str]) -> None:
    values = [member.value for member in Baseline]
    for name in names:
        if name not in values:
            raise ValueError(f"no baseline `{name}`: choose of {', '.join(values)}")


def _check_modes(names: Sequence[str]) -> None:
    for name in names:
        if name not in ("greedy", "sampled"):
            raise ValueError(f"no mode `{name}`: choose of greedy, sampled")
    if not names:
        raise ValueError("no mode: choose of greedy, sampled")


def run_generate(
    options: GenerateOptions, progress: Progress = lambda _name, _total: None
) -> dict[str, Any]:
    """Measures what the options ask for.

    Returns:
        What was measured on what, `rows` as `report` describes them, and `verification_costs`.

    Raises:
        ValueError: Something is missing, unknown, or does not belong together.
        OSError: A file cannot be read.
    """
    options.check()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specds-bench-")))
        model, tokenizer = _target_of(options)
        datastores = _datastores(options, tokenizer, folder)
        requests = _requests(options, model, tokenizer)
        target = Target.of(model, options.verification, forced=options.forced)
        names = [drafter_name(name) for name in options.drafters]
        own = DrafterInputs(
            model=model,
            tokenizer=tokenizer,
            weights=read_weights(options.weights),
            # What a model of random weights predicts would not be what the record's has.
            recycled=not options.forced,
        )
        chosen = options.baselines
        baselines = (
            usual_baselines(model.device) if chosen is None else [Baseline(name) for name in chosen]
        )
        plan = Plan(
            target,
            [
                *(baseline_way(baseline, target) for baseline in baselines),
                *drafter_ways(names, own, options.budgets, datastores, target, stack),
            ],
            _modes(options),
            {size: batches(requests, size) for size in options.batches},
            options.runs,
            options.seed,
            options.warm_memory,
        )
        total = plan.num_calls + num_passes(options.contexts, options.num_nodes)
        cells = measure(plan, lambda name: progress(name, total))
        costs = verification_costs(
            target, options.contexts, options.num_nodes, lambda name: progress(name, total)
        )
    return {**_about(options, model), "rows": rows_of(cells), "verification_costs": costs}


def _target_of(options: GenerateOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if options.shape is None:
        model, own = load_model(str(options.model), device=options.device, dtype=options.dtype)
        return model, own if options.tokenizer is None else load_tokenizer(options.tokenizer)
    device, dtype = resolve_placement(options.device, options.dtype)
    usual = "float32" if device == "cpu" else "bfloat16"
    name = options.tokenizer
    if name is None:
        if not options.datastores:
            raise ValueError("no tokenizer: give one by --tokenizer, or a datastore that names it")
        name = Datastore.open(options.datastores[0]).tokenizer_name
    tokenizer = load_tokenizer(name)
    dtype = usual if dtype == "auto" else dtype
    return random_model(options.shape, device=device, dtype=dtype), tokenizer


def _datastores(
    options: GenerateOptions, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[Datastore]:
    paths = list(options.datastores)
    if options.is_demo and not paths:
        paths = [Path(build_stdlib(tokenizer, folder / "stdlib.specds").path)]
    datastores = [Datastore.open(path) for path in paths]
    for datastore in datastores:
        check_tokenizer(datastore, tokenizer)
        datastore.warm()  # what is drafted first would else wait for the disk
    return datastores


def _requests(
    options: GenerateOptions, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[Request]:
    if options.is_demo:
        count = options.limit or max(USUAL_PROMPTS, *options.batches)
        return held_out_requests(tokenizer, count, options.seed, options.max_new_tokens)
    known = int(model.config.get_text_config(decoder=True).vocab_size)
    recorded = read_files(options.transcripts, tokenizer, options.limit)
    check_groups(recorded, len(options.transcripts))
    for transcript in recorded:
        largest = max(transcript.prompt_ids.max(), transcript.completion_ids.max())
        if largest >= known:
            raise ValueError(
                f"a transcript of `{transcript.source}` holds token {largest}, the model has "
                f"{known}: take a model or a shape of the same tokenizer"
            )
    return requests_of(recorded, forced=options.forced, max_new_tokens=options.max_new_tokens)


def _modes(options: GenerateOptions) -> list[Mode]:
    greedy: dict[str, Any] = {"do_sample": False}
    if options.forced:
        return [Mode("forced", greedy)]
    sampled = {"do_sample": True, "temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    known = {"greedy": greedy, "sampled": sampled}
    return [Mode(name, known[name]) for name in options.modes]


def _about(options: GenerateOptions, model: PreTrainedModel) -> dict[str, Any]:
    paths = {
        "transcripts": [str(path) for path in options.transcripts],
        "datastores": [str(path) for path in options.datastores],
    }
    device = model.device
    on_gpu = device.type == "cuda"
    return {
        **asdict(options),
        **paths,
        "specds": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
    }


def sentence(about: dict[str, Any]) -> str:
    """What was measured on what, for people."""
    name = about["model"] or f"random weights of the shape {about['shape']}"
    threads = f", {about['num_threads']} threads" if about["device"] == "cpu" else ""
    runs = "one run" if about["runs"] == 1 else f"{about['runs']} runs"
    return (
        f"{name}, {about['dtype']}, {about['device']}{threads}; {runs}; specds {about['specds']}, "
        f"torch {about['torch']}, transformers {about['transformers']}"
    )


def altered(document: dict[str, Any]) -> list[Row]:
    """The rows of drafters that changed a text which rounding cannot excuse."""
    exact = document["dtype"] in ("float32", "float64")
    return [
        row
        for row in document["rows"]
        if row["kind"] == "drafter"
        and row["num_differing"]
        and (row["mode"] == "forced" or (row["mode"] == "greedy" and exact))
    ]
