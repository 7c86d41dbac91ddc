"""Times of passes, measured when a model is loaded and kept for later processes.

Other load makes passes slower, never faster, so the least of several measurements is kept.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specds._core import ForwardModel
from specds.models.cache_folder import cache_folder, keep, read_kept

SIZES = (16, 8, 4, 2, 1)
"""Tokens of the passes that are measured, in this order: a process continues with one token."""

MEASUREMENTS = 3
"""Processes that measure the passes of a file."""

_FILE = "pass-times.json"
_MAX_BYTES = 1 << 17
_MAX_ENTRIES = 128

PassTimes = Sequence[tuple[int, float]]


def pass_times_of(
    weights: ForwardModel, activations: Any, num_threads: int, file: str
) -> PassTimes:
    """Return the tokens and the seconds of some passes, the least of what processes measured.

    Args:
        weights: The model.
        activations: As in `load_gguf`.
        num_threads: Threads of a pass.
        file: The file of the weights. Times of a file that was replaced are not used.
    """
    path, key = cache_folder() / _FILE, _key(weights, activations, num_threads, file)
    kept = _read(path)
    found: Any = kept.pop(key, None) if key is not None else None
    count, times = found if _is_valid(found) else (0, [])
    if count < MEASUREMENTS:
        seconds = weights.pass_times(SIZES, activations=activations, num_threads=num_threads)
        before = dict(map(tuple, times))
        times = [(size, min(new, before.get(size, new)))
                 for size, new in zip(SIZES, seconds, strict=True)]  # fmt: skip
        if key is not None:
            newest = dict([*kept.items()][1 - _MAX_ENTRIES :]) | {key: [count + 1, times]}
            with suppress(OSError):
                keep(path, json.dumps(newest).encode())
    return [(int(size), float(seconds)) for size, seconds in times]


def _key(weights: ForwardModel, activations: Any, num_threads: int, file: str) -> str | None:
    """Return what the times depend on, None if the weights are in no file."""
    about: list[Any] = []
    try:
        for each in (file, _extension()):  # the name may be that of a folder or of a model
            found = os.stat(each)  # noqa: PTH116
            about += [str(Path(each).resolve()), found.st_size, found.st_mtime_ns]
    except OSError:
        return None
    return json.dumps([*about, activations, num_threads, weights.instructions, _processor()])


def _extension() -> str:
    """Return the file of the kernels."""
    return str(sys.modules[ForwardModel.__module__].__file__)


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> dict[str, Any]:
    content = read_kept(path, _MAX_BYTES)
    with suppress(ValueError):
        kept = json.loads(content or b"{}")
        if isinstance(kept, dict):
            return kept
    return {}


def _is_valid(found: Any) -> bool:
    """Return whether what was kept, which others may have changed, is whole."""

    def is_time(pair: Any) -> bool:
        is_pair = isinstance(pair, list) and len(pair) == 2
        return is_pair and isinstance(pair[0], int) and isinstance(pair[1], float) and pair[1] > 0

    if not (isinstance(found, list) and len(found) == 2 and type(found[0]) is int):
        return False
    times = found[1]
    return isinstance(times, list) and [*map(is_time, times)] == [True] * len(SIZES)
