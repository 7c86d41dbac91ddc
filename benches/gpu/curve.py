"""What does a target forward cost by the number of nodes that it verifies?"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from specds.accept.on_device import PassRequest
from specds.accept.on_host import Sampler
from specds.bench.generation.measure import synchronise
from specds.drafters import TokenTree
from specds.verify.packed import PackedRunner
from specds.verify.support import require_support

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

# Enough that a median stands; the passes of all sizes take turns.
REPEATS = 15
PREFILL_CHUNK = 1024
BRANCHES = 4
# Predictions at each node, as the drafter `fused` asks for them.
NUM_PREDICTIONS = 8


@torch.inference_mode()
def verification_costs(
    model: PreTrainedModel, context: int, num_nodes: Sequence[int]
) -> list[dict[str, Any]]:
    """Times passes over trees, after a context of random tokens.

    A pass over one token, of 0 nodes, is always measured.

    Returns:
        A row each: ``num_nodes``, the median ``seconds``, and ``ratio``, how many times that of the
        pass without nodes.
    """
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    token_ids = np.random.default_rng(0).integers(vocab_size, size=context)
    trees = {size: tree_of(size, vocab_size) for size in sorted({0, *num_nodes})}
    # On a CUDA device that replays recordings.
    verifies, *_ = require_support(model, verification="packed")
    runner = verifies(
        model, prompt_length=context, max_length=context + 1 + max(trees), max_nodes=max(trees)
    )
    last = int(token_ids[-1])
    request = PassRequest(
        Sampler(LogitsProcessorList(), do_sample=False), NUM_PREDICTIONS, vocab_size
    )

    def step(tree: TokenTree) -> None:
        """What a step asks of the device: acceptance too, where that is its part."""
        if isinstance(runner, PackedRunner) and runner.accepts:
            runner.launch([last], [tree], request)()
        else:
            runner.verify_rows([last], [tree])

    seconds: dict[int, list[float]] = {size: [] for size in trees}
    try:
        runner.prefill_rows([torch.from_numpy(token_ids)[None]], PREFILL_CHUNK)
        for repeat in range(REPEATS + 1):
            for size, tree in trees.items():
                synchronise(model.device)
                started = perf_counter()
                # Nothing is committed, so the next pass writes where this one did.
                step(tree)
                synchronise(model.device)
                if repeat:  # the first of each size allocates
                    seconds[size].append(perf_counter() - started)
    finally:
        runner.close()
    medians = {size: median(times) for size, times in seconds.items()}
    return [
        {"num_nodes": size, "seconds": each, "ratio": each / medians[0]}
        for size, each in medians.items()
    ]


def tree_of(num_nodes: int, vocab_size: int) -> TokenTree:
    """Some branches of equal depth, with different tokens."""
    nodes = np.arange(num_nodes)
    return TokenTree(nodes % vocab_size, np.maximum(nodes - BRANCHES, -1))
