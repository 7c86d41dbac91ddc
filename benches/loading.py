"""Loading of random GGUF files of real shapes: first, again, and in two processes at once.

    python benches/loading.py --shape Llama-3.1-8B --mix Q4_K_M [--folder FOLDER]

Writes the file, loads it in processes of its own with an empty cache, and removes it. Each load
ends in a pass over one token, which reads all weights. `--shape` is one of
`tests/data/model_shapes.json`, `--mix` a mix of types as llama.cpp makes it, or one type.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32


def write_random(path: Path, shape: str, mix: str) -> None:
    """Write a file of this shape; its blocks are random, and its texts without meaning."""
    from gguf_models import BLOCKS
    from model_shapes import SHAPES, tensor_type, tensors
    from shaped_models import metadata_of
    from specds.models import gguf_writer

    of, layers = SHAPES[shape], range(SHAPES[shape]["layers"])
    # llama.cpp reads no tokenizer of this model, and takes the size from the metadata.
    vocabulary = {
        "tokenizer.ggml.model": "no_vocab",
        f"{of['architecture']}.vocab_size": of["vocab"],
    }
    metadata = metadata_of(of, layers) | vocabulary
    shapes = {}
    for name, dimensions in tensors(of):
        kind = (
            mix if mix in BLOCKS and len(dimensions) > 1 else tensor_type(of, mix, name, dimensions)
        )
        shapes[name] = (kind, dimensions)
    head, lengths = b"", []
    for name, (kind, dimensions) in shapes.items():
        number, weights, block_bytes, _ = BLOCKS[kind]
        head += gguf_writer.encoded_text(name)
        head += struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", number, sum(lengths))
        lengths.append(math.prod(dimensions) // weights * block_bytes)
    fields = b"".join(
        gguf_writer.encoded_text(key) + gguf_writer.encoded_value(value)
        for key, value in metadata.items()
    )
    start = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata)) + fields + head
    with path.open("wb") as file:
        file.write(start + bytes(-len(start) % _ALIGNMENT))
        for (kind, *_), length in zip(shapes.values(), lengths, strict=True):
            for part in _random_parts(kind, length):
                file.write(part)
    os.utime(path, (time.time() - 3600,) * 2)  # a file that has just been written is not cached


def _random_parts(kind: str, length: int) -> Iterator[memoryview]:
    """Yield random blocks, of which a few MB recur."""
    from gguf_models import BLOCKS, random_tensor

    weights, block_bytes = BLOCKS[kind][1:3]
    if kind not in _PARTS:
        num_blocks = (8 << 20) // block_bytes
        random = np.random.default_rng(1)
        _PARTS[kind] = random_tensor(random, kind, num_blocks, weights)
    part = memoryview(_PARTS[kind])
    while length > 0:
        yield part[:length]
        length -= len(part)


_PARTS: dict[str, bytes] = {}


def load(path: str) -> None:
    """Load a file and compute a token; print the figures, and wait for the end of the input."""
    from specds._core import ForwardCache, GgufFile
    from specds.models.packing import default_threads, packed

    start, cpu = time.perf_counter(), time.process_time()
    model = packed(GgufFile(path), path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    model.forward(ForwardCache(model), [(0, [1], None, 1)], num_threads=default_threads())
    first = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = {"seconds": seconds, "cpu_seconds": cpu_seconds, "first_token": first, "peak": peak}
    print(json.dumps(report | {"is_cached": model.is_cached}), flush=True)
    sys.stdin.readline()  # both processes have their memory until both are measured
    rollup = Path("/proc/self/smaps_rollup").read_text()
    shares = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")]
    print(shares[0] * 1024, flush=True)
    sys.stdin.readline()


def measure(path: Path, cache: Path, number: int) -> list[dict[str, Any]]:
    """Load a file in this many processes at once."""
    environment = {**os.environ, "SPECDS_CACHE": str(cache)}
    command = [sys.executable, __file__, "--load", str(path)]
    started = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(number)
    ]
    reports = [json.loads(process.stdout.readline()) for process in started]
    for step in range(2):
        for process, report in zip(started, reports, strict=True):
            process.stdin.write("\n")
            process.stdin.flush()
            if step == 0:
                report["share"] = int(process.stdout.readline())
    for process in started:
        process.wait()
    return reports


def main() -> None:
    from model_shapes import SHAPES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="Llama-3.1-8B")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument(
        "--folder", type=Path, help="where the file is written; needs twice its size"
    )
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder, "model.gguf")
        write_random(path, arguments.shape, arguments.mix)
        size = path.stat().st_size
        print(f"{arguments.shape} {arguments.mix}: {size / 1e9:.2f} GB, {os.cpu_count()} cores")
        print(
            "| load | s | CPU s | GB/s | GB per CPU s | s to a token | RSS / file | share / file |"
        )
        print("| --- " + "| ---: " * 7 + "|")
        cache = Path(folder, "cache")
        for name, number in (("first", 1), ("again", 1), ("two at once, again", 2)):
            for of in measure(path, cache, number):
                speeds = (size / of[key] / 1e9 for key in ("seconds", "cpu_seconds"))
                figures = [of["seconds"], of["cpu_seconds"], *speeds, of["first_token"]]
                figures += [of["peak"] / size, of["share"] / size]
                print(f"| {name} |", " | ".join(f"{figure:.2f}" for figure in figures), "|")


if __name__ == "__main__":
    main()
