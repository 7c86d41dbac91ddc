"""Cost of a step by the number of nodes that it verifies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from gpu.figure import Figure
from gpu.shapes import random_model
from specds.bench.generation.target import synchronize
from specds.bench.turns import medians
from specds.drafters import TokenTree
from specds.transformers.accept.on_device import PassRequest
from specds.transformers.accept.on_host import Sampler
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.support import require_support

# The nodes of the threshold, as many as a draft has at most by default.
NODES = 63
LARGEST_RATIO, LARGEST_OF_SECOND = 1.10, 1.15
# Passes of all sizes take turns.
REPEATS = 15
PREFILL_CHUNK = 1024
BRANCHES = 4
# Predictions at each node, as many as the drafter `fused` uses.
NUM_PREDICTIONS = 8


@torch.inference_mode()
def median_seconds(model: Any, context: int, nodes: Sequence[int]) -> dict[int, float]:
    """Time forward passes over trees, and one without nodes, after a context of random tokens."""
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    token_ids = np.random.default_rng(0).integers(vocab_size, size=context)
    trees = {size: tree_of(size, vocab_size) for size in (0, *nodes)}
    verifies, *_ = require_support(model, verification="packed")
    runner = verifies(
        model, prompt_length=context, max_length=context + 1 + max(trees), max_nodes=max(trees)
    )
    last = int(token_ids[-1])
    request = PassRequest(
        Sampler(LogitsProcessorList(), do_sample=False), NUM_PREDICTIONS, vocab_size
    )

    def step(tree: TokenTree) -> None:
        """Run a step: the forward pass, and acceptance if it runs on the device."""
        if isinstance(runner, PackedRunner) and runner.accepts:
            runner.launch([last], [tree], request)()
        else:
            runner.verify_rows([last], [tree])

    try:
        runner.prefill_rows([torch.from_numpy(token_ids)[None]], PREFILL_CHUNK)
        # Nothing is committed, so the next pass overwrites this one.
        steps = {size: partial(step, tree) for size, tree in trees.items()}
        return medians(steps, REPEATS, partial(synchronize, model.device))
    finally:
        runner.close()


def tree_of(num_nodes: int, vocab_size: int) -> TokenTree:
    """Return a tree of branches of equal depth, with different tokens."""
    nodes = np.arange(num_nodes)
    return TokenTree(nodes % vocab_size, np.maximum(nodes - BRANCHES, -1))


def curve(options: argparse.Namespace, most: float = LARGEST_RATIO) -> Iterator[Figure]:
    """Cost of a step with n nodes over one without, acceptance included: T(n) / T(0)."""
    model = random_model(options.shape, device=options.device, dtype=options.dtype)
    for context in options.contexts:
        seconds = median_seconds(model, context, options.nodes)
        for size, each in seconds.items():
            yield Figure(
                f"{size} nodes after {context:,} tokens, over none",
                each / seconds[0],
                "x",
                at_most=most if size == NODES else None,
                note=f"{1e3 * each:.2f} ms",
            )


def curve_of_second(options: argparse.Namespace) -> Iterator[Figure]:
    """Cost of a step of the second shape, which has grouped query heads."""
    of_second = argparse.Namespace(**{**vars(options), "shape": options.second_shape})
    yield from curve(of_second, LARGEST_OF_SECOND)
