"""CPU times of passes of k tokens over one layer of experts with random weights, of a real width.

    make bench-experts ARGS="Qwen3-30B-A3B --mix Q4_K_M"

Tokens of a pass are all different, so that they take other experts, or equal, so that they
take nearly the same ones: text lies between. Each pass has tokens of its own, so that weights come
from memory. The embeddings are few, so that the times are those of a layer; MODEL is a name in
tests/data/model_shapes.json.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from gguf_models import random_tensor, write_gguf
from model_shapes import SHAPES, Shape, tensor_type, tensors
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.bench.turns import medians

NUM_TOKENS = (1, 2, 4, 9)
VOCAB_SIZE, CONTEXT = 512, 128


def write_layer(path: Path, shape: Shape, mix: str) -> None:
    """Write a model of the first layer, with random weights in the types of a mix."""
    random = np.random.default_rng(1)
    shape = {**shape, "layers": 1, "vocab": VOCAB_SIZE, "tied": True}
    experts, architecture = shape["experts"], shape["architecture"]
    fields = {
        "embedding_length": shape["hidden"], "block_count": 1, "context_length": 1024,
        "attention.head_count": shape["heads"], "attention.head_count_kv": shape["kv_heads"],
        "attention.key_length": shape["head_size"], "attention.value_length": shape["head_size"],
        "attention.layer_norm_rms_epsilon": shape["norm_epsilon"],
        "rope.freq_base": shape["rope_base"], "feed_forward_length": experts["feed_forward"],
        "expert_count": experts["number"], "expert_used_count": experts["used"],
        "expert_feed_forward_length": experts["feed_forward"],
        "expert_shared_feed_forward_length": experts.get("shared_feed_forward", 0),
    }  # fmt: skip
    fields = {f"{architecture}.{name}": value for name, value in fields.items()}
    made = {}
    for name, dimensions in tensors(shape):
        kind = tensor_type(shape, mix, name, dimensions)
        number = int(np.prod(dimensions[1:]))
        made[name] = kind, dimensions, random_tensor(random, kind, number, dimensions[0])
    write_gguf(path, {"general.architecture": architecture, **fields}, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="Qwen3-30B-A3B")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--repetitions", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.gguf"
        write_layer(path, SHAPES[arguments.model], arguments.mix)
        model = ForwardModel(GgufFile(path))
    cache = ForwardCache(model)
    context = np.arange(CONTEXT) * 29 % VOCAB_SIZE
    model.forward(cache, [(0, context, None, 0)])
    cache.commit(0, range(CONTEXT))
    print(f"CPU ms of a layer of {arguments.model}, {arguments.mix}, {model.instructions}, and")
    print(f"relative to one token; median of {arguments.repetitions}, one thread")
    print(f"{'tokens, activations':>24}", *(f"{f'k = {number}':>14}" for number in NUM_TOKENS))
    for activations in ("float32", "int8"):
        tokens = np.arange(max(NUM_TOKENS))
        together = _chain(model, cache, tokens, activations)
        assert np.array_equal(_chain(model, cache, tokens[:2], activations), together[:2])
        for name, step in (("different", 1), ("the same", 0)):
            random = np.random.default_rng(2)

            def run(number: int, step: int = step, random: np.random.Generator = random) -> None:
                first = random.integers(VOCAB_SIZE)
                tokens = (first + step * np.arange(number)) % VOCAB_SIZE
                _chain(model, cache, tokens, activations)  # noqa: B023

            calls = {number: partial(run, number) for number in NUM_TOKENS}
            times = medians(calls, arguments.repetitions, clock="cpu_seconds")
            cells = (f"{1e3 * each:>7.1f} ({each / times[1]:.2f})" for each in times.values())
            print(f"{f'{name}, {activations}':>24}", *cells)


def _chain(model: ForwardModel, cache: ForwardCache, tokens: np.ndarray, activations: str):
    inputs = [(0, tokens, None, len(tokens))]
    return model.forward(cache, inputs, activations=activations, num_threads=1)


if __name__ == "__main__":
    main()
