"""Cache folder for files that can be computed again, such as model tables."""

import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """Return ``SPECDS_CACHE``, or ``specds`` in the user's cache folder."""
    own = os.environ.get("SPECDS_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specds"


def read_kept(path: Path, max_bytes: int) -> bytes | None:
    """Return the content of a cached file, or None if there is no trusted one.

    Args:
        path: The file. A folder that other users can write is not trusted.
        max_bytes: A larger file is not read.
    """
    try:
        _check_own(path.parent)
        if not path.is_file() or path.stat().st_size > max_bytes:
            return None
        return path.read_bytes()
    except OSError:
        return None


def keep(path: Path, content: bytes) -> None:
    own_folder(path.parent)
    write_whole(path, content)


def private_folder(name: str) -> Path | None:
    """Make a folder in the cache folder; return None if there can be no trusted one."""
    path = cache_folder() / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(path)
    except OSError:
        return None
    return path


def own_folder(folder: Path) -> Path:
    """Return a folder that only this user can write, created if it does not exist.

    Raises:
        OSError: It cannot be created, or others can write it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(folder)
    return folder


def write_whole(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it, so that readers see all of it or none."""
    unfinished = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _check_own(folder: Path) -> None:
    found = folder.stat()
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise PermissionError(f"other users can write {folder}, so nothing is kept there")
