"""Integrity checks of a downloaded datastore, which is untrusted input.

The core reads the manifest before anything else, and only files that a manifest can name are used.
"""

import json
from pathlib import Path
from typing import Any

from specds._core import Datastore, FormatError, datastore_files, read_manifest

MANIFEST = "manifest.json"
_MAX_SHARDS = 1024


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a datastore; its names and numbers are checked."""
    manifest: dict[str, Any] = json.loads(read_manifest(folder))
    if len(manifest["shards"]) > _MAX_SHARDS:
        raise FormatError(
            f"{folder} has more than {_MAX_SHARDS:,} shards: join them with `specds compact`"
        )
    return manifest


def files_of(folder: Path) -> list[tuple[str, bool]]:
    """Return the paths of all files of a datastore, and whether each must exist."""
    manifest_of(folder)
    return datastore_files(folder)


def open_snapshot(folder: Path) -> Datastore:
    """Open a datastore in the hub's cache, unless a link of its files leaves the cache.

    Raises:
        FileNotFoundError: A file is missing.
        FormatError: A file is damaged, or is outside the cache.
    """
    repository = folder.parent.parent.resolve()
    kept = (folder.resolve(), repository / "blobs", repository.parent / "blobs")
    for file, is_required in files_of(folder):
        if not is_required and not (folder / file).exists():
            continue
        real = (folder / file).resolve(strict=True)
        if not real.is_file() or not any(real.is_relative_to(place) for place in kept):
            raise FormatError(f"{folder / file} leads out of the hub's cache, to {real}")
    return Datastore(folder)
