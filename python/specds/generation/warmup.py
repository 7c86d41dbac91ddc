"""Warm-up of a model before its first request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specds.generation.options import DrafterLike
from specds.generation.runner import Verification
from specds.generation.target import target_of


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
    numbers = [rows] if isinstance(rows, int) else rows
    target_of(model).warm_up(drafter, max_context, numbers, verification)
