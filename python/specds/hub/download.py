"""From a name to a folder: what is there, what was pulled before, or what the hub sends."""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import SimpleNamespace

from specds._core import FormatError
from specds.hub.checks import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    check,
    check_sizes,
    files_of,
    manifest_of,
    remember,
    remembered,
)
from specds.hub.client import KIND, LIBRARY, describe, explained, hub, small_blocks
from specds.hub.names import HubName
from specds.tokenization import Tokenizer, check_tokenizer


def locate(path: str | PathLike[str]) -> Path:
    """The folder of a datastore: the path itself, or that of a name on the hub.

    What was pulled before is used as it is, without asking the hub: `pull` looks for a later one.

    Raises:
        OSError: It is not here, and the hub has none, refuses it or cannot be reached.
        FormatError: What the hub has is damaged, or lies.
    """
    name = HubName.parse(path)
    if name is None or Path(path).exists():
        return Path(path)
    if folder := remembered(name):
        return folder
    try:
        kept = hub().try_to_load_from_cache(
            name.repository, MANIFEST, revision=name.revision, **KIND
        )
    except ImportError as error:
        message = f"there is no folder `{name}` here; for one of the hub: {error}"
        raise FileNotFoundError(message) from error
    if isinstance(kept, str):
        with suppress(OSError, FormatError):  # not all of it is there, or it is damaged
            return _checked(name, Path(kept).parent)
    return _pull(name, None, not_here=True)


def pull(name: str | PathLike[str], *, tokenizer: Tokenizer | None = None) -> Path:
    """Downloads what this machine lacks of a datastore of the hub, and checks it.

    Args:
        name: ``org/name`` or ``hf://org/name@revision``.
        tokenizer: The one that it must be of; compared before shards are downloaded.

    Returns:
        The folder in the hub's cache.

    Raises:
        ValueError: It is no such name, or the datastore is of another tokenizer.
        OSError: As for `locate`.
        FormatError: What the hub has is damaged, or lies.
    """
    parsed = HubName.parse(name)
    if parsed is None:
        raise ValueError(f"`{name}` is no datastore of the hub: try org/name")
    return _pull(parsed, tokenizer)


def _pull(name: HubName, tokenizer: Tokenizer | None, *, not_here: bool = False) -> Path:
    with explained(name, not_here=not_here):
        commit, sizes = describe(name)
        if not 0 < sizes.get(MANIFEST, 0) <= MAX_MANIFEST_BYTES:
            raise FormatError(f"`{name}` is no datastore: it has no usable {MANIFEST}")
        path = hub().hf_hub_download(
            name.repository, MANIFEST, revision=name.revision, **KIND, **LIBRARY
        )
    folder = Path(path).parent
    if folder.name != commit:
        raise ConnectionError(f"`{name}` was changed just now: pull it again")
    manifest = manifest_of(folder)
    if tokenizer is not None:
        check_tokenizer(SimpleNamespace(**{"path": name, "commands": [], **manifest}), tokenizer)
    if remembered(name) == folder:
        return folder
    is_damaged = False
    try:
        return _checked(name, folder)
    except OSError:  # not all of it is there
        pass
    except FormatError:
        is_damaged = True
    check_sizes(name, manifest, sizes)
    with explained(name), small_blocks():
        hub().snapshot_download(
            name.repository,
            revision=commit,
            allow_patterns=files_of(manifest),
            force_download=is_damaged,
            **KIND,
            **LIBRARY,
        )
    return _checked(name, folder)


def _checked(name: HubName, folder: Path) -> Path:
    check(folder)
    remember(name, folder)
    return folder
