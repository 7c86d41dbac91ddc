"""Resolution of a datastore's name to a folder: a local path, the hub's cache, or a download."""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from pathlib import Path

from specds._core import FormatError
from specds.hub.checks import MANIFEST, files_of, manifest_of, open_snapshot
from specds.hub.client import KIND, LIBRARY, describe, explained, hub
from specds.hub.names import HubName

_MAX_MANIFEST_BYTES = 1 << 24


def locate(path: str | PathLike[str]) -> Path:
    """Return the folder of a datastore: the path itself, or the snapshot of a name on the hub.

    A downloaded datastore is used without a request to the hub and without verifying its checksums
    again: `pull` updates it, and `Datastore.verify` verifies it.

    Raises:
        OSError: It is neither on this machine nor on the hub, or the hub cannot be reached.
        FormatError: The datastore on the hub is damaged.
    """
    name = HubName.parse(path)
    if name is None or Path(path).exists():
        return Path(path)
    try:
        kept = hub().try_to_load_from_cache(
            name.repository, MANIFEST, revision=name.revision, **KIND
        )
    except ImportError as error:
        message = f"there is no folder `{name}` here; for a name on the hub: {error}"
        raise FileNotFoundError(message) from error
    if isinstance(kept, str):
        with suppress(OSError, FormatError):  # an incomplete or damaged snapshot is pulled again
            return open_snapshot(Path(kept).parent).path
    return _pull(name, not_here=True)


def pull(name: str | PathLike[str]) -> Path:
    """Download the missing files of a datastore on the hub, and verify all checksums.

    Args:
        name: ``org/name`` or ``hf://org/name@revision``.

    Returns:
        The folder in the hub's cache.

    Raises:
        ValueError: The name is invalid.
        OSError: As for `locate`.
        FormatError: The datastore on the hub is damaged.
    """
    parsed = HubName.parse(name)
    if parsed is None:
        raise ValueError(f"`{name}` is not a name on the hub: try org/name")
    return _pull(parsed)


def _pull(name: HubName, *, not_here: bool = False) -> Path:
    with explained(name, not_here=not_here):
        _, sizes = describe(name)  # one request, where the client would retry for half a minute
        if not 0 < sizes.get(MANIFEST, 0) <= _MAX_MANIFEST_BYTES:
            raise FormatError(f"`{name}` is not a datastore: it has no usable {MANIFEST}")
        path = hub().hf_hub_download(
            name.repository, MANIFEST, revision=name.revision, **KIND, **LIBRARY
        )
    folder = Path(path).parent
    patterns = files_of(manifest_of(folder))
    for force in (False, True):  # a file that was damaged in the cache is downloaded again
        with explained(name):
            hub().snapshot_download(
                name.repository,
                revision=folder.name,
                allow_patterns=patterns,
                force_download=force,
                **KIND,
                **LIBRARY,
            )
        try:
            open_snapshot(folder).verify(checksums_only=True)
        except FileNotFoundError as error:
            message = f"`{name}` lacks {error.filename}, which its manifest lists"
            raise FormatError(message) from error
        except FormatError:
            if force:
                (folder / MANIFEST).unlink()  # else `locate` would find it in the cache
                raise
        else:
            break
    return folder
