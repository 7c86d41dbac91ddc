"""Logits at places of 8,000 tokens, by a random layer of a shape of 8 billion weights."""

import tempfile
import time
from pathlib import Path

import numpy as np

from model_shapes import SHAPES
from shaped_models import ShapedFile
from specds._core import ForwardCache, ForwardModel, GgufFile

_NUM_TOKENS = 8000
# The first tokens, those at borders of pages and of a window of 4,096, and the last one.
_PLACES = [0, 1, 255, 256, 4095, 4096, 4097, 6000, _NUM_TOKENS - 1]
_CASES = [("Mistral-7B-v0.1", "int8"), ("Llama-3.1-8B", "int8")]


def figures() -> list[str]:
    """Return the lines of the section, a row for each case."""
    rows = ["| shape | activations | window | CPU time | keys and values | largest error |"]
    rows.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, activations in _CASES:
        window = SHAPES[name].get("window", "")
        seconds, num_bytes, error = _compared(name, activations)
        rows.append(
            f"| {name} | {activations} | {window} | {seconds:.0f} s | "
            f"{num_bytes / 2**20:.0f} MiB | {error:.2g} |"
        )
        print(rows[-1], flush=True)
    return rows


def _compared(name: str, activations: str) -> tuple[float, int, float]:
    """Return the CPU time of a prompt, the bytes of its cache, and an error by the spread."""
    shape = {**SHAPES[name], "layers": 1}
    tokens = np.random.default_rng(3).integers(0, 512, _NUM_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        file = ShapedFile(path, shape, "Q4_K_M", window=shape.get("window", _NUM_TOKENS))
        expected = file.expected(tokens, _PLACES)
        model = ForwardModel(GgufFile(path), num_threads=2)
        cache, logits, first = ForwardCache(model), [], 0
        start = time.process_time()
        for place in _PLACES:
            inputs = [(0, tokens[first : place + 1], None, 1)]
            logits.append(model.forward(cache, inputs, activations=activations, num_threads=2)[0])
            cache.commit(0, range(place + 1 - first))
            first = place + 1
        seconds = time.process_time() - start
    errors = np.sqrt(np.square(np.stack(logits) - expected).mean(-1)) / expected.std()
    return seconds, model.cache_bytes(_NUM_TOKENS), float(errors.max())
