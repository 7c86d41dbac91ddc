"""Run of `specds bench generate`: from options to a document of rows."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specds._core import __version__
from specds.bench.demo import build_stdlib, prompts
from specds.bench.drafters import check_names, drafters_of
from specds.bench.generation.measure import Plan, batches_of, measure
from specds.bench.generation.report import rows_of
from specds.bench.generation.target import PLAIN, BenchTarget, baseline_way, drafter_way
from specds.bench.harness import BenchReport, OnProgress, circumstances, open_datastores
from specds.bench.options import BASELINES, GenerateOptions
from specds.bench.transcripts import read_files
from specds.drafters import DrafterInputs
from specds.models.load import load_encoder, load_model, require_packages
from specds.models.packing import use_threads
from specds.models.resolve import ModelRef
from specds.models.tokenization import Tokenizer, check_tokenizer
from specds.terminal.progress import loading

_USUAL_PROMPTS = 12


def run_generate(options: GenerateOptions, progress: OnProgress = lambda *_: None) -> BenchReport:
    if not options.transcripts and not options.is_demo:
        raise ValueError("no prompts: pass recorded answers with --transcripts")
    use_threads(options.threads)
    has_torch = all(map(find_spec, ("torch", "transformers")))
    if {*(options.baselines or ())} - {PLAIN}:
        require_packages(ModelRef.resolve(options.model), "torch", "transformers")
    given = bool(options.datastores) or options.is_demo
    check_names(options.drafters, datastore=given, model=True)
    with ExitStack() as stack:
        datastores = open_datastores(options.datastores)
        with loading(options.model) as shown:
            model, own = load_model(
                options.model,
                device=options.device,
                dtype=options.dtype,
                activations=options.activations,
                framework="transformers" if has_torch else "numpy",
                progress=shown,
            )
        tokenizer = own if options.tokenizer is None else load_encoder(options.tokenizer)
        if options.is_demo and not datastores:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="specds-bench-"))
            built = build_stdlib(tokenizer, Path(folder, "stdlib.specds"))
            datastores = open_datastores([Path(built.path)])
        for datastore in datastores:
            check_tokenizer(datastore, tokenizer)
        target = BenchTarget(model, options.verification)
        chosen = _prompts(options, target, tokenizer)
        inputs = DrafterInputs(model=model, tokenizer=tokenizer)
        drafters = drafters_of(options.drafters, datastores, inputs)
        baselines = _usual_baselines(target) if options.baselines is None else options.baselines
        ways = [baseline_way(name, target) for name in baselines]
        for drafter in drafters:
            make = drafter.load()
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
    return {**circumstances(), **_about(options, target), "rows": rows_of(cells)}


def _usual_baselines(target: BenchTarget) -> list[str]:
    if target.is_array:
        return [PLAIN]
    if hasattr(target.model, "weights"):  # the core computes it
        return ["generate", PLAIN]
    # On a CPU `compiled` takes minutes to start.
    return [name for name in BASELINES if name != "compiled" or target.has_queue]


def _prompts(
    options: GenerateOptions, target: BenchTarget, tokenizer: Tokenizer
) -> list[list[int]]:
    if options.is_demo:  # of modules that the demo's models and its datastore have not seen
        count = options.limit or max(_USUAL_PROMPTS, *options.batches)
        return [tokenizer(each.text)["input_ids"] for each in prompts(count, seed=options.seed)]
    known = target.vocab_size
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


def _about(options: GenerateOptions, target: BenchTarget) -> BenchReport:
    return {
        **asdict(options),
        "transcripts": [str(path) for path in options.transcripts],
        "datastores": [str(path) for path in options.datastores],
        "specds": __version__,
        **target.about(),
    }
