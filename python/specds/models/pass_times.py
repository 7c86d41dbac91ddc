"""Times of passes, measured when a model is loaded and kept for later processes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specds._core import ForwardModel
from specds.models.cache_folder import cache_folder, keep, read_kept

SIZES = (16, 8, 4, 2, 1)
"""Tokens of the passes that are measured, in this order: a process continues with one token."""

_FILE = "pass-times.json"
_MAX_BYTES = 1 << 17
_MAX_ENTRIES = 128

PassTimes = Sequence[tuple[int, float]]


def pass_times_of(
    weights: ForwardModel, activations: Any, num_threads: int, file: str
) -> PassTimes:
    """Return the tokens and the seconds of some passes: those of an earlier process, or new ones.

    Args:
        weights: The model.
        activations: As in `load_gguf`.
        num_threads: Threads of a pass.
        file: The file of the weights. Times of a file that was replaced are not used.
    """
    path, key = cache_folder() / _FILE, _key(weights, activations, num_threads, file)
    kept = _read(path)
    if key is not None and _is_valid(found := kept.pop(key, None)):
        return [(int(size), float(seconds)) for size, seconds in found]
    seconds = weights.pass_times(SIZES, activations=activations, num_threads=num_threads)
    times = [*zip(SIZES, seconds, strict=True)]
    if key is not None:
        newest = dict([*kept.items()][1 - _MAX_ENTRIES :]) | {key: times}
        with suppress(OSError):
            keep(path, json.dumps(newest).encode())
    return times


def _key(weights: ForwardModel, activations: Any, num_threads: int, file: str) -> str | None:
    """Return what the times depend on, None if the weights are in no file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - the name may be that of a folder or of a model
    except OSError:
        return None
    whole = [str(Path(file).resolve()), found.st_size, found.st_mtime_ns]
    return json.dumps([*whole, activations, num_threads, weights.instructions, _processor()])


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


def _is_valid(times: Any) -> bool:
    """Return whether the times of a file, which others may have changed, are whole."""

    def is_time(pair: Any) -> bool:
        is_pair = isinstance(pair, list) and len(pair) == 2
        return is_pair and isinstance(pair[0], int) and isinstance(pair[1], float) and pair[1] > 0

    return isinstance(times, list) and [*map(is_time, times)] == [True] * len(SIZES)
