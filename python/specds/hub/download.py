"""Resolution of a datastore's name to a folder: a local path, the hub's cache, or a download."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from specds._core import FormatError
from specds.hub.checks import MANIFEST, files_of, open_snapshot
from specds.hub.client import KIND, LIBRARY, describe, explained, hub
from specds.hub.names import HubName

_MAX_MANIFEST_BYTES = 1 << 24
_NUM_CONNECTIONS = 8


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
        message = f"no folder `{name}` here; for a name on the hub: {error}"
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
        # One request, where the client would retry for half a minute.
        commit, sizes = describe(name)
        if not 0 < sizes.get(MANIFEST, 0) <= _MAX_MANIFEST_BYTES:
            raise FormatError(f"`{name}` is not a datastore: it has no usable {MANIFEST}")
        # By its branch, which the client notes for `locate`.
        folder = _download(name, name.revision, MANIFEST, sizes).parent
        if folder.name != commit:  # the branch has moved
            _, sizes = describe(HubName(name.repository, folder.name))
    files = [file for file, _ in files_of(folder) if file in sizes]
    for force in (False, True):  # a file that was damaged in the cache is downloaded again
        with explained(name), ThreadPoolExecutor(_NUM_CONNECTIONS) as pool:
            running = [
                pool.submit(_download, name, folder.name, file, sizes, force=force)
                for file in files
            ]
            try:
                for future in running:
                    future.result()
            finally:
                for future in running:
                    future.cancel()
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


def _download(
    name: HubName, revision: str, file: str, sizes: Mapping[str, int], *, force: bool = False
) -> Path:
    """Download a file into the cache unless it is there; its body ends at its size at the latest.

    The client passes the number of bytes of each part to its progress bar before it writes them.
    """

    class Bar(hub().utils.tqdm):  # type: ignore[misc]
        num_received = 0

        def update(self, n: float | None = 1) -> Any:
            self.num_received += int(n or 0)
            if self.num_received > sizes[file]:
                raise FormatError(f"`{name}` sends more than the {sizes[file]:,} bytes of {file}")
            return super().update(n)

    return Path(
        hub().hf_hub_download(
            name.repository,
            file,
            revision=revision,
            force_download=force,
            tqdm_class=Bar,
            **KIND,
            **LIBRARY,
        )
    )
