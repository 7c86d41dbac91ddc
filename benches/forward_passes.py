"""Times of forward passes of k tokens, of specds and of llama.cpp in one run.

    python benches/forward_passes.py MODEL.gguf [--llama-python PYTHON] [--threads 1]
    python benches/forward_passes.py FOLDER
    make bench-cpu-passes ARGS="--shape Qwen2.5-1.5B --mix Q4_K_M --context 8192"

`--shape` writes a random file of one of `tests/data/model_shapes.json`. Contexts are random keys
and values, which are `float16` with `int8` activations.
For the folder of a model of transformers, the backends `model` and `native` take turns.
llama.cpp is that of the package llama-cpp-python, in processes of the interpreter that
`--llama-python` names: with its own repacked weights and without. All ways take turns, so that
other load meets all of them alike. Times of one thread are CPU times, those of several wall-clock
times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

NUM_TOKENS = (1, 5, 9, 16, 32)
CONTEXT, PROMPT = 128, 512
CACHE_TYPES = {"float32": "float32", "int8": "float16"}


def tokens_of(number: int, vocab_size: int, start: int = 0) -> list[int]:
    """Tokens that no text repeats."""
    return [(place * 104729 + 31 * start + 500) % vocab_size for place in range(number)]


def specds_passes(
    path: str, num_threads: int, context: int, all_instructions: list[str]
) -> dict[str, Callable[[int], None]]:
    """A pass for each of these instructions of this processor and each precision of activations."""
    from specds._core import ForwardCache, ForwardModel, GgufFile

    file = GgufFile(path)
    passes = {}
    for instructions in all_instructions:
        try:
            model = ForwardModel(file, instructions=instructions)
        except ValueError:
            continue  # not of this processor
        if instructions == "portable" and passes:
            continue  # a minute for each prompt
        vocab_size = model.config["vocab_size"]
        for activations in ("float32", "int8"):
            cache = ForwardCache(model, 1, CACHE_TYPES[activations])
            options = {"activations": activations, "num_threads": num_threads}
            fill(model, cache, context)

            def run(number, model=model, cache=cache, options=options, vocab_size=vocab_size):
                tokens = tokens_of(number, vocab_size, context)
                num_logits = 1 if number == PROMPT else number
                model.forward(cache, [(0, tokens, None, num_logits)], **options)

            passes[f"specds {instructions} {activations}"] = run
    return passes


def fill(model, cache, context: int) -> None:
    """Commit random keys and values of this many tokens."""
    config = model.config
    width = config["num_key_value_heads"] * config["head_dim"]
    random = np.random.default_rng(1)
    while (left := context - cache.length(0)) > 0:
        shape = config["num_hidden_layers"], 2, min(left, 512), width
        cache.append(0, random.standard_normal(shape, dtype=np.float32))


def transformers_passes(
    folder: str, num_threads: int, *_: object
) -> dict[str, Callable[[int], None]]:
    """A pass for each precision and backend."""
    import torch
    from transformers import AutoModelForCausalLM

    from specds import TokenTree
    from specds.transformers.verify.generic import Runner
    from specds.transformers.verify.in_place import InPlaceRunner

    torch.set_num_threads(num_threads)
    torch.set_grad_enabled(False)
    passes = {}
    sizes = {"prompt_length": CONTEXT, "max_length": CONTEXT + PROMPT, "max_nodes": PROMPT}
    for dtype in ("float32", "bfloat16"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for name, backend in {"model": Runner, "native": InPlaceRunner}.items():
            runner = backend(model, **sizes)
            runner.prefill_rows([torch.tensor([tokens_of(CONTEXT, model.config.vocab_size)])])

            def run(number, runner=runner, vocab_size=model.config.vocab_size):
                first, *nodes = tokens_of(number, vocab_size, CONTEXT)
                runner.verify_rows([first], [TokenTree(nodes, range(-1, number - 2))])

            passes[f"{name} {dtype}"] = run
    return passes


def llama_pass(
    path: str, num_threads: int, depth: int, *, is_repacked: bool
) -> Callable[[int], None]:
    """A pass of llama.cpp after `depth` tokens, with its own repacked weights or without."""
    import llama_cpp

    model_options = llama_cpp.llama_model_default_params()
    model_options.use_extra_bufts = is_repacked
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_batch = depth + PROMPT + 64, PROMPT
    options.n_threads = options.n_threads_batch = num_threads
    context = llama_cpp.llama_init_from_model(model, options)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(PROMPT, 0, 1)

    def run(number: int, start: int = depth) -> None:
        batch.n_tokens = number
        for place, token in enumerate(tokens_of(number, vocab_size, start)):
            batch.token[place], batch.pos[place] = token, start + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place == number - 1 or number < PROMPT
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama.cpp refused a batch")
        llama_cpp.llama_synchronize(context)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, depth, -1)

    for start in range(0, depth, PROMPT):
        run(min(PROMPT, depth - start), start)
    return run


def timed(run: Callable[[int], None], number: int, num_threads: int) -> float:
    clock = time.process_time if num_threads == 1 else time.perf_counter
    start = clock()
    run(number)
    return clock() - start


def serve(arguments: argparse.Namespace) -> None:
    """Time a pass of llama.cpp for each number of tokens that is read."""
    run = llama_pass(
        arguments.model, arguments.threads, arguments.context, is_repacked=arguments.repacked
    )
    for line in sys.stdin:
        print(timed(run, int(line), arguments.threads), flush=True)


def llama_by_process(arguments: argparse.Namespace, is_repacked: bool) -> Callable[[int], float]:
    command = [arguments.llama_python, __file__, arguments.model, "--serve"]
    command += ["--threads", str(arguments.threads), "--context", str(arguments.context)]
    command += ["--repacked"] * is_repacked
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    )  # fmt: skip

    def ask(number: int) -> float:
        server.stdin.write(f"{number}\n")
        server.stdin.flush()
        return float(server.stdout.readline() or "nan")

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a file or a folder; none with --shape")
    parser.add_argument("--shape", help="write a random file of this shape")
    parser.add_argument("--mix", default="Q4_K_M", help="the types of its weights")
    parser.add_argument("--folder", type=Path, help="where it is written")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens before each pass")
    parser.add_argument("--instructions", default="avx512,avx2,portable", help="those to time")
    parser.add_argument("--llama-python", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--repacked", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    if arguments.shape is None:
        compare(arguments)
        return
    from loading import write_random

    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        arguments.model = str(Path(folder, "model.gguf"))
        write_random(Path(arguments.model), arguments.shape, arguments.mix)
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Time all ways in turns, and print their tables."""
    made = transformers_passes if Path(arguments.model).is_dir() else specds_passes
    instructions = arguments.instructions.split(",")
    passes = made(arguments.model, arguments.threads, arguments.context, instructions)
    ways = {
        name: lambda number, run=run: timed(run, number, arguments.threads)
        for name, run in passes.items()
    }
    if arguments.llama_python:
        ways = {
            "llama.cpp": llama_by_process(arguments, is_repacked=False),
            "llama.cpp, repacked": llama_by_process(arguments, is_repacked=True),
            **ways,
        }
    from specds.bench.turns import in_turns

    sizes = (*NUM_TOKENS, PROMPT)
    times: dict[tuple[str, int], list[float]] = {}
    for repetition in range(arguments.repetitions):
        for number in sizes:
            if number == PROMPT and repetition % 5:
                continue
            calls = {name: partial(measure, number) for name, measure in ways.items()}
            for name, call in in_turns(calls, repetition).items():
                times.setdefault((name, number), []).append(call.result * 1e3)
    unit = "CPU ms" if arguments.threads == 1 else "ms"
    context, number = arguments.context, arguments.repetitions
    print(f"{unit} of a pass of k tokens after {context}, min (median) of {number}")
    print(f"{'k':>24}", *(f"{number:>16}" for number in sizes))
    for name in ways:
        of = [times[name, number] for number in sizes]
        print(f"{name:>24}", *(f"{min(t):>7.1f} ({statistics.median(t):6.1f})" for t in of))
    first = next(iter(ways))
    for name in [*ways][1:]:
        ratios = [min(times[name, number]) / min(times[first, number]) for number in sizes]
        print(f"{name:>24} over {first}:", *(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
