"""Is what was pulled a datastore, whole, and within its folder? Found once, and remembered.

A datastore from elsewhere is taken for hostile. The core reads its manifest before anything else,
and knows no files but those that a manifest can name.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from specds._core import Datastore, FormatError, read_manifest
from specds.cache_folder import cache_folder, keep, read_kept
from specds.hub.names import HubName

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 24
_MAX_SHARDS = 1024
_OF_SHARD = (
    *("shard.json", "tokens.bin", "suffixes.bin", "firsts.bin", "keys.bin"),
    "documents.bin",
)
_MAX_NOTE_BYTES = 1 << 20


def manifest_of(folder: Path) -> dict[str, Any]:
    """What a datastore says of itself; its names and numbers can be relied on."""
    manifest: dict[str, Any] = json.loads(read_manifest(folder))
    if len(manifest["shards"]) > _MAX_SHARDS:
        raise FormatError(
            f"{folder} has more than {_MAX_SHARDS:,} shards: `specds compact` makes few of them"
        )
    return manifest


def groups_of(manifest: dict[str, Any]) -> dict[tuple[str, ...], int]:
    """The files that a manifest lists, by shard, and how many bytes each group has together."""
    return {
        tuple(f"shard-{shard['id']}/{file}" for file in _OF_SHARD): int(shard["num_bytes"])
        for shard in manifest["shards"]
    }


def files_of(manifest: dict[str, Any]) -> list[str]:
    """All files of a datastore, the manifest first."""
    return [MANIFEST, *(file for group in groups_of(manifest) for file in group)]


def check_sizes(what: object, manifest: dict[str, Any], sizes: dict[str, int]) -> None:
    """Refuses files of other lengths than the manifest states, before they are downloaded."""
    for group, num_bytes in groups_of(manifest).items():
        missing = [file for file in group if file not in sizes]
        if missing:
            raise FormatError(f"`{what}` lacks {missing[0]}, which its manifest lists")
        found = sum(sizes[file] for file in group)
        if found != num_bytes:
            folder = group[0].partition("/")[0]
            raise FormatError(
                f"`{what}` is not as long as it says: {folder} has {found:,} bytes, and its "
                f"manifest states {num_bytes:,}"
            )


def check(folder: Path) -> None:
    """Checks every byte of a snapshot against its checksum, and that no link leaves the cache."""
    repository = folder.parent.parent.resolve()
    kept = (folder.resolve(), repository / "blobs", repository.parent / "blobs")
    for file in files_of(manifest_of(folder)):
        real = (folder / file).resolve(strict=True)
        if not real.is_file() or not any(real.is_relative_to(place) for place in kept):
            raise FormatError(f"{folder / file} leads out of the hub's cache, to {real}")
    Datastore(folder).verify(checksums_only=True)


def remember(name: HubName, folder: Path) -> None:
    """Notes that a snapshot was checked, and what its files looked like then."""
    files = files_of(manifest_of(folder))
    note = {"folder": str(folder), "files": {file: _looks(folder / file) for file in files}}
    keep(_note_of(name), json.dumps(note).encode())


def remembered(name: HubName) -> Path | None:
    """The snapshot that was checked last under this name; None where it has changed since."""
    content = read_kept(_note_of(name), _MAX_NOTE_BYTES)
    if content is None:
        return None
    try:
        note = json.loads(content)
        folder = Path(note["folder"])
        is_same = all(_looks(folder / file) == looks for file, looks in note["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder if is_same else None


def _looks(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _note_of(name: HubName) -> Path:
    asked = f"{os.environ.get('HF_ENDPOINT', '')} {name.repository}@{name.revision}"
    return cache_folder() / f"hub-{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
