"""Packing of the weights of GGUF files for this processor, and the cache of packed weights."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from specds._core import ForwardModel, GgufFile
from specds.models.cache_folder import cache_folder, own_folder
from specds.models.needs import require_memory

PACKED = "weights-*.packed"
"""Names of files of packed weights in the cache folder."""
LEAST_BYTES = 64 << 20
"""Smaller files are packed in less time than a user notices, so that they are not cached."""
_MAGIC, _HEADER_BYTES, _SOURCE_START = b"SPCDSPKD", 4096, 96
_LIMIT = "SPECDS_CACHE_LIMIT"
_DEFAULT_LIMIT_GB = 50.0


def packed(
    file: GgufFile,
    path: str | PathLike[str],
    progress: Callable[[int, int], object] | None = None,
) -> ForwardModel:
    """Pack the weights of a file, or map those that an earlier call has packed.

    Args:
        file: The file.
        path: Its path.
        progress: Is called several times a second with the bytes that are packed, and those of all
            weights. An exception of it, or Ctrl-C, ends the loading.

    Raises:
        FormatError: The file is damaged or not supported.
        NotEnoughMemoryError: The weights do not fit.
    """
    require_memory(file)
    cache = None
    if os.name == "posix" and Path(path).stat().st_size >= LEAST_BYTES:
        cache = _cache()
    return ForwardModel(file, num_threads=default_threads(), progress=progress, cache=cache)


def source_of(path: Path) -> str | None:
    """Return the path of the GGUF file that a cached file was packed from; None for other files."""
    if not path.match(PACKED):
        return None
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    source = header[_SOURCE_START:].rstrip(b"\0").decode(errors="replace")
    return source if header.startswith(_MAGIC) and source else None


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or the number of cores of this process."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit():
        return max(int(chosen), 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_threads(number: int | None) -> None:
    """Choose the threads of this process, for torch too; None keeps the usual ones.

    Raises:
        ValueError: The number is below 1.
    """
    if number is None:
        return
    if number < 1:
        raise ValueError(f"threads must be at least 1, got {number}")
    os.environ["OMP_NUM_THREADS"] = str(number)
    if "torch" in sys.modules:  # it has read the variable
        sys.modules["torch"].set_num_threads(number)


def _cache() -> tuple[Path, int] | None:
    """Return the folder of packed weights and the most bytes of its files."""
    limit = os.environ.get(_LIMIT, "") or _DEFAULT_LIMIT_GB
    try:
        most = int(float(limit) * 1e9)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{_LIMIT} must be a number of gigabytes, not {limit!r}") from error
    if most <= 0:
        return None
    try:
        folder = own_folder(cache_folder())
        found = sum(path.stat().st_size for path in folder.glob(PACKED))
        # A disk that others use, too, is not filled.
        return folder, min(most, found + shutil.disk_usage(folder).free // 2)
    except OSError:
        return None
