"""The measurement that the command line asks for, from names and paths to rows."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specds._core import Datastore, __version__
from specds.bench.generation.curve import num_passes, verification_costs
from specds.bench.generation.measure import Mode, Plan, measure
from specds.bench.generation.report import rows_of
from specds.bench.generation.shapes import placement, random_model
from specds.bench.generation.ways import (
    Baseline,
    Target,
    baseline_way,
    batches,
    drafter_ways,
    held_out_requests,
    requests_of,
    usual_baselines,
)
from specds.bench.harness import (
    circumstances,
    open_datastores,
    silent,
    tokenizer_of,
)
from specds.bench.options import MODES
from specds.bench.transcripts import read_files
from specds.demo.held_out import build_stdlib
from specds.drafters import DrafterInputs, DrafterName, read_weights, require_inputs
from specds.hierarchy.config import drafter_name
from specds.loading import load_model, load_tokenizer
from specds.tokenization import check_tokenizer
from specds.verify.support import require_verification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.bench.generation.ways import Request
    from specds.bench.harness import Document, Progress
    from specds.bench.options import GenerateOptions

USUAL_PROMPTS = 12


def check(options: GenerateOptions) -> None:
    """Refuses what cannot be run, before anything is loaded.

    Raises:
        ValueError: Naming the option.
    """
    least, most = min(options.batches, default=1), max(options.batches, default=1)
    checks = {
        "no target: give a model by --model, or a real shape by --shape": (
            (options.model is None) == (options.shape is None)
        ),
        "a --shape has random weights and writes nonsense: add --forced": (
            options.shape is not None and not options.forced
        ),
        "no prompts: give recorded answers by --transcripts": (
            not options.transcripts and not options.is_demo
        ),
        "no answers to force: give them by --transcripts": (
            options.forced and not options.transcripts
        ),
        f"runs must be at least 1, got {options.runs}": options.runs < 1,
        f"a batch must hold at least 1 prompt, got {least}": least < 1,
        f"{options.limit} prompts make no batch of {most}: give a larger --limit, or a smaller "
        "--batch": options.limit is not None and options.limit < most,
        f"no mode: choose of {', '.join(MODES)}": not options.modes,
    }
    for message, is_wrong in checks.items():
        if is_wrong:
            raise ValueError(message)
    names = [drafter_name(name) for name in options.drafters]
    _check_known("baseline", options.baselines or (), [member.value for member in Baseline])
    _check_known("mode", options.modes, MODES)
    require_verification(options.verification)
    given = bool(options.datastores) or options.is_demo
    for name in names:
        if isinstance(name, DrafterName):
            require_inputs(name, datastore=given, model=True)


def _check_known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {kind} `{name}`: choose of {', '.join(known)}")


def run_generate(options: GenerateOptions, progress: Progress = silent) -> Document:
    """Measures what the options ask for.

    Returns:
        What was measured on what, `rows`, and `verification_costs` as `curve` gives them.

    Raises:
        ValueError: Something is missing, unknown, or does not belong together.
        OSError: A file cannot be read.
    """
    check(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specds-bench-")))
        datastores = open_datastores(options.datastores)
        model, tokenizer = _target_of(options, datastores)
        if options.is_demo and not datastores:
            built = build_stdlib(tokenizer, folder / "stdlib.specds")
            datastores = [Datastore.open(built.path)]
            datastores[0].warm()
        for datastore in datastores:
            check_tokenizer(datastore, tokenizer)
        requests = _requests(options, model, tokenizer)
        target = Target.of(model, options.verification, forced=options.forced)
        own = DrafterInputs(
            model=model,
            tokenizer=tokenizer,
            weights=read_weights(options.weights),
            # What a model of random weights predicts would not be what the record's has.
            recycled=not options.forced,
        )
        names = [drafter_name(name) for name in options.drafters]
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

        def told(name: str) -> None:
            progress(name, total)

        cells = measure(plan, told)
        costs = verification_costs(target, options.contexts, options.num_nodes, told)
    return {
        **circumstances(),
        **_about(options, model),
        "rows": rows_of(cells),
        "verification_costs": costs,
    }


def _target_of(
    options: GenerateOptions, datastores: Sequence[Datastore]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if options.shape is None:
        model, own = load_model(str(options.model), device=options.device, dtype=options.dtype)
        return model, own if options.tokenizer is None else load_tokenizer(options.tokenizer)
    _, tokenizer = tokenizer_of(options.tokenizer, datastores)
    device, dtype = placement(options.device, options.dtype)
    return random_model(options.shape, device=device, dtype=dtype), tokenizer


def _requests(
    options: GenerateOptions, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[Request]:
    if options.is_demo:
        count = options.limit or max(USUAL_PROMPTS, *options.batches)
        return held_out_requests(tokenizer, count, options.seed, options.max_new_tokens)
    known = int(model.config.get_text_config(decoder=True).vocab_size)
    recorded = read_files(options.transcripts, tokenizer, options.limit)
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
    return [Mode(name, greedy if name == "greedy" else sampled) for name in options.modes]


def _about(options: GenerateOptions, model: PreTrainedModel) -> Document:
    device = model.device
    return {
        **asdict(options),
        "transcripts": [str(path) for path in options.transcripts],
        "datastores": [str(path) for path in options.datastores],
        "specds": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
    }
