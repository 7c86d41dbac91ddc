"""Run of `specds bench generate`: from options to a document of rows."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specds._core import __version__
from specds.bench.demo import build_stdlib, prompts
from specds.bench.drafters import check_names, drafters_of
from specds.bench.generation.measure import (
    BenchTarget,
    Plan,
    baseline_way,
    batches_of,
    drafter_way,
    measure,
)
from specds.bench.generation.report import rows_of
from specds.bench.harness import BenchReport, OnProgress, circumstances, open_datastores
from specds.bench.options import BASELINES, GenerateOptions
from specds.bench.transcripts import read_files
from specds.drafters import DrafterInputs
from specds.models.load import load_model, load_tokenizer
from specds.models.native import NativeModel
from specds.models.tokenization import Tokenizer, check_tokenizer, model_vocab_size

_USUAL_PROMPTS = 12


def run_generate(options: GenerateOptions, progress: OnProgress = lambda *_: None) -> BenchReport:
    if not options.transcripts and not options.is_demo:
        raise ValueError("no prompts: pass recorded answers with --transcripts")
    given = bool(options.datastores) or options.is_demo
    check_names(options.drafters, datastore=given, model=True)
    with ExitStack() as stack:
        datastores = open_datastores(options.datastores)
        model, own = load_model(
            options.model,
            device=options.device,
            dtype=options.dtype,
            activations=options.activations,
        )
        tokenizer = own if options.tokenizer is None else load_tokenizer(options.tokenizer)
        if options.is_demo and not datastores:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="specds-bench-"))
            built = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
            datastores = open_datastores([Path(built.path)])
        for datastore in datastores:
            check_tokenizer(datastore, tokenizer)
        chosen = _prompts(options, model, tokenizer)
        target = BenchTarget(model, options.verification)
        inputs = DrafterInputs(model=model, tokenizer=tokenizer)
        drafters = drafters_of(options.drafters, datastores, inputs)
        baselines = options.baselines
        if baselines is None:  # on a CPU `compiled` takes minutes to start
            is_cpu = model.device.type == "cpu"
            baselines = [name for name in BASELINES if name != "compiled" or not is_cpu]
        if options.baselines is None and isinstance(model, NativeModel):
            baselines = ["generate", "plain"]
        ways = [baseline_way(name, target) for name in baselines]
        for drafter in drafters:
            make = stack.enter_context(drafter.open())
            ways += [
                drafter_way(drafter.name, target, make, max_nodes, drafter.datastore)
                for max_nodes in options.max_nodes
            ]
        plan = Plan(
            target,
            ways,
            _modes(options),
            {size: batches_of(chosen, size) for size in options.batches},
            options.runs,
            options.seed,
            options.warm_memory,
        )
        cells = measure(plan, lambda mode: progress(mode, plan.num_rounds))
    return {**circumstances(), **_about(options, model), "rows": rows_of(cells)}


def _prompts(
    options: GenerateOptions, model: PreTrainedModel, tokenizer: Tokenizer
) -> list[list[int]]:
    if options.is_demo:  # of modules that the demo's models and its datastore have not seen
        count = options.limit or max(_USUAL_PROMPTS, *options.batches)
        return [tokenizer(each.text)["input_ids"] for each in prompts(count, seed=options.seed)]
    known = model_vocab_size(model)
    recorded = read_files(options.transcripts, tokenizer, options.limit)
    chosen: list[list[int]] = [each.prompt_ids.tolist() for each in recorded]
    largest = max(map(max, chosen))
    if largest >= known:
        raise ValueError(
            f"a prompt has token {largest}, the model only {known}: use one of the same tokenizer"
        )
    return chosen


def _modes(options: GenerateOptions) -> dict[str, dict[str, Any]]:
    sampled = {"do_sample": True, "temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    settings: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": sampled}
    return {
        name: {**settings[name], "max_new_tokens": options.max_new_tokens} for name in options.modes
    }


def _about(options: GenerateOptions, model: PreTrainedModel) -> BenchReport:
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
