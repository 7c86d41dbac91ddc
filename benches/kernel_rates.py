"""Products a second by type of weights, tokens, instructions and activations, on one thread.

    make bench-cpu ARGS="--types Q4_K,Q6_K"

A model of three random layers of 1536 x 8960 weights, 140 million in all, computes passes of some
tokens after 16; a rate counts all weights once for each token, in the least CPU time of some turns.
The peak is what numpy's product of float32 matrices reaches on one thread, and for int8 as many
times that as an instruction makes more products: 4 with VNNI, and 2 with AVX2.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gguf_models import BLOCKS, write_model
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.bench.turns import medians

NUM_TOKENS = (1, 4, 9, 32)
_CACHE_TYPES = {"float32": "float32", "int8": "float16"}
_PRODUCTS = {"avx512": 4, "avxvnni": 4, "avx2": 2}
_FLOATS = ("F32", "F16", "BF16")


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def peak() -> float:
    """Return the products of float32 a second of this processor."""
    size = 1024
    a = np.random.default_rng(1).standard_normal((size, size)).astype("f4")
    a @ a
    return size**3 / min(cpu_seconds(lambda: a @ a) for _ in range(9))


def rates(model: ForwardModel, activations: str, turns: int) -> list[float]:
    """Return the products a second for each number of tokens."""
    cache = ForwardCache(model, 1, _CACHE_TYPES[activations])
    model.forward(cache, [(0, range(16), None, 0)], activations=activations)
    cache.commit(0, range(16))
    run = partial(model.forward, cache, activations=activations)
    calls = {number: partial(run, [(0, range(number), None, number)]) for number in NUM_TOKENS}
    weights = model.config["num_weights"]
    seconds = medians(calls, turns, clock="cpu_seconds")
    return [number * weights / seconds[number] for number in NUM_TOKENS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quantized = ",".join(kind for kind in BLOCKS if kind not in _FLOATS)
    parser.add_argument("--types", default=quantized, help="types of weights, by commas")
    parser.add_argument("--instructions", default="avx512,avx2")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    highest = peak()
    print(f"Peak in float32: {highest / 1e9:.1f} GMAC/s. GMAC/s (share of the peak in %):\n")
    tokens = " | ".join(f"{number} tokens" for number in NUM_TOKENS)
    print(f"| type | instructions | activations | {tokens} | T(9)/T(1) |")
    print("| --- " * 3 + "| ---: " * (len(NUM_TOKENS) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        for kind in arguments.types.split(","):
            write_model(path, "llama", (kind,), hidden=1536, wide=8960, heads=48, vocab=512)
            for instructions in arguments.instructions.split(","):
                try:
                    model = ForwardModel(GgufFile(path), instructions=instructions)
                except ValueError:
                    continue  # not of this processor
                for activations in ("float32", "int8"):
                    found = rates(model, activations, arguments.turns)
                    factor = _PRODUCTS.get(instructions, 1) if activations == "int8" else 1
                    shares = (f"{of / 1e9:.1f} ({of / highest / factor:.0%})" for of in found)
                    by_number = dict(zip(NUM_TOKENS, found, strict=True))
                    ratio = 9 * by_number[1] / by_number[9]
                    cells = [kind, instructions, activations, *shares, f"{ratio:.2f}"]
                    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
