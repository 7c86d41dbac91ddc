"""Rehearsal of the forward passes of a model of transformers."""

from collections.abc import Sequence
from contextlib import closing

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from specds._core import TokenTree
from specds.generation.budget import MAX_NODES
from specds.generation.options import DrafterLike, Options
from specds.generation.runner import Verification, Verifier
from specds.models.tokenization import model_vocab_size
from specds.transformers.accept.on_device import PassRequest
from specds.transformers.accept.on_host import Sampler
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.support import require_support

# The first length at which passes without the attention kernel are recorded.
_SHORT_CONTEXT = 256


@torch.no_grad()
def rehearse(
    model: PreTrainedModel,
    drafter: DrafterLike,
    max_context: int,
    rows: Sequence[int],
    verification: Verification,
) -> None:
    """Check a model, and run passes as `specds.warm_up` says."""
    runner_class, *_ = require_support(model, verification=verification)
    drafter = Options.of(drafter).drafter
    session = drafter.session([0])
    vocab_size = model_vocab_size(model)
    sampler = Sampler(LogitsProcessorList(), do_sample=False)
    known = drafter.vocab_size or vocab_size
    numbers = sorted({0, session.num_predictions})
    requests = [PassRequest(sampler, number, known) for number in numbers]
    session.finish()
    # The largest number first: smaller batches use the same cache.
    for num_rows in sorted(rows, reverse=True):
        sizes = {"prompt_length": max_context, "max_length": max_context, "max_nodes": MAX_NODES}
        with closing(runner_class(model, num_rows=num_rows, **sizes)) as runner:
            _run_passes(runner, max_context, requests)


def _run_passes(runner: Verifier, max_context: int, requests: Sequence[PassRequest]) -> None:
    num_rows = len(runner.lengths)
    runner.prefill_rows([torch.zeros((1, 2), dtype=torch.int64, device="cpu")] * num_rows)
    length = min(_SHORT_CONTEXT, max_context)
    while True:
        # Slots that no prompt has filled hold zeros, which take as long.
        is_filled = runner.takes_trees and hasattr(runner, "cache")
        if is_filled:
            runner.cache.lengths = [length] * num_rows  # type: ignore[attr-defined]
        for num_nodes in runner.node_steps or (0, MAX_NODES):
            trees = [TokenTree([0] * num_nodes, range(-1, num_nodes - 1))] * num_rows
            if isinstance(runner, PackedRunner) and runner.accepts:
                for request in requests:
                    runner.launch([0] * num_rows, trees, request)()
            else:
                runner.rehearse([0] * num_rows, trees)
        if length == max_context or not is_filled:
            return
        length = min(2 * length, max_context)
