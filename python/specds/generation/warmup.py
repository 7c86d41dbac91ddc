"""Warm-up of a model before its first request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from specds._core import TokenTree
from specds._lazy import imported
from specds.decoding.budget import MAX_NODES
from specds.generation.options import DrafterLike
from specds.models.gguf_model import GgufModel, is_without_torch
from specds.verify.native import require_native, runner_of
from specds.verify.runner import Verification


def warm_up(
    model: Any,
    drafter: DrafterLike = None,
    max_context: int = 2048,
    rows: int | Sequence[int] = 1,
    *,
    verification: Verification = "auto",
) -> None:
    """Prepare a model, so that its first request does not wait for it.

    Checks the model, allocates the key-value cache, runs forward passes of the smallest and the
    largest size and, on a CUDA device, records those of all sizes at each doubling of the context.
    The passes of a GGUF file on a CPU read its weights from the disk.

    Args:
        model: The model: of transformers, or a `GgufModel`.
        drafter: As in `specds.generate`: recorded passes return the predictions that it uses.
        max_context: The longest row to prepare for, prompt included. Longer rows set up more when
            they occur.
        rows: Rows of a request, or several such numbers.
        verification: As in `specds.generate`.

    Raises:
        UnsupportedModelError: A draft cannot be verified on the model.
    """
    if is_without_torch(model):
        require_native(verification)
        _run_passes(model)
        return
    numbers = [rows] if isinstance(rows, int) else rows
    imported("specds.generation.rehearsal").rehearse(
        model, drafter, max_context, numbers, verification
    )


def _run_passes(model: GgufModel) -> None:
    with closing(runner_of(model)(model)) as runner:
        runner.prefill_rows([np.zeros((1, 2), dtype=np.int64)])
        for num_nodes in (0, MAX_NODES):
            runner.rehearse([0], [TokenTree([0] * num_nodes, range(-1, num_nodes - 1))])
