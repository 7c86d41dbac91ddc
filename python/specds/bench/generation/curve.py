"""What does a target forward cost by the number of nodes that it verifies?"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from specds._core import TokenTree
from specds.accept.on_device import Chooser, PassRequest
from specds.demo.measure import synchronise
from specds.verify.static import StaticRunner, runner_class
from specds.verify.support import require_support

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds.bench.generation.ways import Target

# Enough that a median stands; the passes of all sizes take turns.
_REPEATS = 15
_PREFILL_CHUNK = 1024
_BRANCHES = 4
# Predictions at each node, as the drafter `fused` asks for them.
_TOLD = 8


def verification_costs(
    target: Target,
    contexts: Sequence[int],
    num_nodes: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Times passes over trees, after contexts of random tokens.

    `progress` is told of each pass. A pass over one token, of 0 nodes, is always measured.

    Returns:
        A row each: ``context``, ``num_nodes``, the median ``seconds``, and ``ratio``, how many
        times that of the pass without nodes.
    """
    sizes, rows = sorted({0, *num_nodes}), []
    with torch.inference_mode():
        for context in contexts:
            times = _times(target, context, sizes, progress)
            for size, seconds in times.items():
                row = {"context": context, "num_nodes": size, "seconds": seconds}
                rows.append({**row, "ratio": seconds / times[0]})
    return rows


def num_passes(contexts: Sequence[int], num_nodes: Sequence[int]) -> int:
    """How often `progress` is told."""
    return len(contexts) * len({0, *num_nodes}) * (_REPEATS + 1)


def _times(
    target: Target, context: int, sizes: Sequence[int], progress: Callable[[str], None]
) -> dict[int, float]:
    model = target.model
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    token_ids = np.random.default_rng(0).integers(vocab_size, size=context)
    trees = {size: _tree(size, vocab_size) for size in sizes}
    verification, _ = require_support(model, verification=target.verification)
    # As requests run it: on a CUDA device that replays recordings.
    runner = runner_class(verification)(
        model, prompt_length=context, max_length=context + 1 + max(sizes), max_nodes=max(sizes)
    )
    last = int(token_ids[-1])
    request = PassRequest(Chooser(LogitsProcessorList(), do_sample=False), _TOLD, vocab_size)

    def step(tree: TokenTree | None) -> None:
        """What a step asks of the device: acceptance too, where that is its part."""
        if isinstance(runner, StaticRunner) and runner.accepts:
            runner.launch([last], [tree], [()], request)()
        else:
            runner.verify_rows([last], [tree])

    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    try:
        runner.prefill_rows([torch.from_numpy(token_ids)[None]], _PREFILL_CHUNK)
        for repeat in range(_REPEATS + 1):
            for size, tree in trees.items():
                progress("verification")
                synchronise(model.device)
                started = perf_counter()
                # Nothing is committed, so the next pass writes where this one did.
                step(tree)
                synchronise(model.device)
                if repeat:  # the first of each size allocates
                    seconds[size].append(perf_counter() - started)
    finally:
        runner.close()
    return {size: median(values) for size, values in seconds.items()}


def _tree(num_nodes: int, vocab_size: int) -> TokenTree | None:
    """Some branches of equal depth, with different tokens."""
    if num_nodes == 0:
        return None
    nodes = np.arange(num_nodes)
    return TokenTree(nodes % vocab_size, np.maximum(nodes - _BRANCHES, -1))
