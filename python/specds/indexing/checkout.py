"""Datastore of a git checkout's own files, refreshed before it is used."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specds._core import Datastore
from specds.corpora.texts import NotTextError, text_of
from specds.indexing.build import build_from_token_ids
from specds.indexing.options import BuildOptions
from specds.indexing.report import Progress
from specds.models.cache_folder import private_folder, read_kept, write_whole
from specds.models.tokenization import Tokenizer, encode_batch, fingerprint, vocab_size

_MAX_FILE_BYTES = 1 << 20
_MAX_BYTES = 1 << 28
"""The most bytes of all files; those that sort last are left out."""
_MAX_KEPT_BYTES = 1 << 31
_BATCH_BYTES = 1 << 20
_SORTING_MEMORY = 1 << 30
_STALE_S = 3600.0
_POLL_S = 0.2
_MOST_LOST = 8
"""The number of times that another process may be faster."""

FileState: TypeAlias = tuple[int, int]
"""The size of a file in bytes, and the time of its last change in nanoseconds."""


class CheckoutError(ValueError):
    """No datastore can be made of the files of a folder."""


def is_checkout(folder: Path) -> bool:
    """Return true for a folder of a git checkout that is not itself a datastore."""
    path = folder.absolute()
    is_source = path.is_dir() and not (path / "manifest.json").is_file()
    return is_source and any((each / ".git").exists() for each in (path, *path.parents))


def checkout_datastore(
    folder: Path, tokenizer: Tokenizer | Any, progress: Progress | None = None
) -> Datastore:
    """Return the datastore of the files below a folder of a git checkout.

    These are the tracked files and those that git does not ignore, of at most 1 MiB. It is kept in
    `SPECDS_CACHE`. Only files that changed are read and tokenized again. A kill leaves what was
    published before; of two processes one builds and the other waits.

    Args:
        folder: The checkout, or a folder in it.
        tokenizer: The model's tokenizer.
        progress: Receives `tokenize` with the bytes of changed files.

    Raises:
        CheckoutError: git cannot list the files, or none has text.
        OSError: The cache folder cannot be written.
    """
    root = folder.resolve()
    kept_in = private_folder("checkouts")
    if kept_in is None:
        raise CheckoutError("the cache folder cannot be written by this user alone: SPECDS_CACHE")
    name = hashlib.sha256(f"{root}\0{fingerprint(tokenizer)}".encode()).hexdigest()[:24]
    num_lost = 0
    while True:
        states = _states(root)
        digest = hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:16]
        out = kept_in / f"checkout-{name}-{digest}.specds"
        try:
            if not (out / "manifest.json").is_file():
                _build(root, states, tokenizer, out, progress)
            found = Datastore(out)
        except BlockingIOError:  # another process builds the same files
            time.sleep(_POLL_S)
        except (FileExistsError, FileNotFoundError):
            # Another process has just built these files, or newer ones.
            num_lost += 1
            if num_lost > _MOST_LOST:
                raise
        else:
            _remove_others(out, name)
            return found


@dataclass
class _KeptTokens:
    """The tokens of the files of a checkout as they were read last."""

    path: Path
    states: dict[str, FileState] = field(default_factory=dict)
    token_ids: dict[str, NDArray[np.uint32]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> _KeptTokens:
        """Return what is kept; nothing if it is damaged."""
        found = cls(path)
        content = read_kept(path, _MAX_KEPT_BYTES)
        try:
            with np.load(io.BytesIO(content or b""), allow_pickle=False) as arrays:
                files = json.loads(bytes(arrays["files"]))
                tokens, start = arrays["tokens"].astype(np.uint32), 0
            for name, size, changed, length in files:
                found.states[name] = int(size), int(changed)
                found.token_ids[name] = tokens[start : start + length]
                start += length
        except Exception:  # the files are read again
            return cls(path)
        return found

    def keep(self) -> None:
        files = [(name, *self.states[name], len(self.token_ids[name])) for name in self.states]
        parts = [self.token_ids[name] for name in self.states]
        tokens = np.concatenate(parts) if parts else np.empty(0, np.uint32)
        content = io.BytesIO()
        listed = np.frombuffer(json.dumps(files).encode(), np.uint8)
        np.savez(content, files=listed, tokens=tokens)
        write_whole(self.path, content.getvalue())


def _states(root: Path) -> dict[str, FileState]:
    """Return the files that git tracks or does not ignore, by their paths below `root`."""
    # A repository's own settings may name a program that git runs to find changed files.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CheckoutError(f"{root} is a checkout, and git is not installed") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise CheckoutError(f"git cannot list {root}: {said[0] if said else error}") from None
    found, left = {}, _MAX_BYTES
    for name in sorted({os.fsdecode(each) for each in listed.stdout.split(b"\0") if each}):
        path = root / name
        # A link may lead out of the checkout.
        if path.is_symlink() or not path.is_file():
            continue
        about = path.stat()
        if 0 < about.st_size <= min(_MAX_FILE_BYTES, left):
            found[name], left = (about.st_size, about.st_mtime_ns), left - about.st_size
    return found


def _build(
    root: Path,
    states: dict[str, FileState],
    tokenizer: Tokenizer | Any,
    out: Path,
    progress: Progress | None,
) -> None:
    kept = _KeptTokens.read(out.with_name(out.name.rpartition("-")[0] + ".tokens.npz"))
    same = {name for name, state in states.items() if kept.states.get(name) == state}
    changed = [name for name in states if name not in same]
    token_ids = {name: kept.token_ids[name] for name in same}
    total, done = sum(states[name][0] for name in changed), 0
    for names, texts in _batches(root, changed):
        flat, lengths = encode_batch(tokenizer, texts)
        ends = np.cumsum(lengths)
        token_ids |= zip(names, np.split(flat.astype(np.uint32), ends[:-1]), strict=True)
        done += sum(states[name][0] for name in names)
        if progress is not None:
            progress("tokenize", done, total)
    nothing = np.empty(0, np.uint32)
    now = _KeptTokens(kept.path, states, {name: token_ids.get(name, nothing) for name in states})
    if changed or len(states) != len(kept.states):
        now.keep()
    documents = [now.token_ids[name] for name in states if len(now.token_ids[name])]
    if not documents:
        raise CheckoutError(f"{root} has no text that git tracks or does not ignore")
    build_from_token_ids(
        documents,
        out,
        BuildOptions(max_memory=_SORTING_MEMORY, commands=(f"specds --datastore {root}",)),
        vocab_size=vocab_size(tokenizer),
        tokenizer_name=str(tokenizer.name_or_path),
        tokenizer_fingerprint=fingerprint(tokenizer),
    )


def _batches(root: Path, names: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    batch: tuple[list[str], list[str]] = [], []
    size = 0
    for name in names:
        try:
            text = text_of(name, (root / name).read_bytes()).text
        except (OSError, NotTextError):
            continue
        batch[0].append(name)
        batch[1].append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = ([], []), 0
    if batch[0]:
        yield batch


def _remove_others(out: Path, name: str) -> None:
    """Remove the datastores of earlier files, and what builds that were killed have left."""
    for path in out.parent.glob(f"checkout-{name}-*.specds"):
        if path != out:
            shutil.rmtree(path, ignore_errors=True)
    for path in out.parent.glob(f".checkout-{name}-*.build"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
