"""Packing of the weights of GGUF files for this processor."""

from __future__ import annotations

import os

from specds._core import ForwardModel, GgufFile
from specds.models.needs import require_memory


def packed(file: GgufFile) -> ForwardModel:
    """Pack the weights of a file.

    Raises:
        FormatError: The file is damaged or not supported.
        NotEnoughMemoryError: The weights do not fit.
    """
    require_memory(file)
    return ForwardModel(file, num_threads=default_threads())


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or the number of cores of this process."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit():
        return max(int(chosen), 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
