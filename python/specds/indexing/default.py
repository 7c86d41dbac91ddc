"""The default datastore: built in the background for a tokenizer, used from the next request on."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from specds._core import Datastore
from specds.models.cache_folder import private_folder, read_kept, write_whole
from specds.models.tokenization import FastTokenizer, Tokenizer, fingerprint, local_tokenizer

_SWITCH = "SPECDS_DEFAULT_DATASTORE"
_VERSION = 1
"""A change of the corpus makes others from then on."""
_MOST_TOKENS = 16_000_000
_FREE_BYTES = 1 << 30
_RETRY_S = 24 * 3600
_MOST_KNOWN, _MOST_KNOWN_BYTES = 100, 1 << 20

_log = logging.getLogger("specds")
_lock, _is_noted = Lock(), False
_builds: dict[Path, subprocess.Popen[bytes]] = {}


def default_datastore(tokenizer: Tokenizer | Any) -> Datastore | None:
    """Return the default datastore of a tokenizer, or start its build and return None.

    It has texts of this machine that no user wrote: the standard library, documentation of the
    system, sources of installed packages; at most 16 M tokens, about 80 MB in `SPECDS_CACHE`. A
    process of the lowest priority builds it, which takes about half a minute; it outlives this
    process, and continues after a kill with the next call.

    It is off if `SPECDS_DEFAULT_DATASTORE` is `0`, in tests, and where `CI` is set.
    """
    if not is_on() or not getattr(tokenizer, "is_fast", False):
        return None
    folder = private_folder("datastores")
    if folder is None:
        return None
    out = _datastore_path(folder, fingerprint(tokenizer))
    if (out / "manifest.json").is_file():
        return _opened(out)
    _start_build(tokenizer, out)
    return None


def _datastore_path(folder: Path, of_tokenizer: str) -> Path:
    return folder / f"machine-{_VERSION}-{of_tokenizer[:24]}.specds"


def _opened(path: Path) -> Datastore | None:
    try:
        return Datastore(path)
    except (OSError, ValueError):  # another version wrote it, or it is damaged
        return None


def is_on() -> bool:
    """Return true unless the default datastore is switched off."""
    choice = os.environ.get(_SWITCH)
    if choice is not None:
        return choice.lower() not in ("", "0", "false", "no", "off")
    return "CI" not in os.environ and "PYTEST_CURRENT_TEST" not in os.environ


class DefaultDatastore:
    """The default datastore of a model, which a thread looks up, opens and reads into memory.

    Args:
        model: A model of transformers or a `GgufModel`, by whose name the tokenizer is read from
            this machine.
        tokenizer: Its tokenizer, if the caller has it.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        config = getattr(model, "config", model)
        self._name = str(getattr(config, "name_or_path", "") or "")
        self._tokenizer = tokenizer
        self._found: Datastore | None = None
        self._thread: Thread | None = None
        self._next_look = 0.0

    def get(self) -> Datastore | None:
        """Return the datastore if it is open, without waiting for it."""
        is_due = self._found is None and time.monotonic() >= self._next_look
        if is_due and is_on() and (self._thread is None or not self._thread.is_alive()):
            self._next_look = time.monotonic() + 5
            self._thread = Thread(target=self._look, daemon=True)
            self._thread.start()
        return self._found

    def _look(self) -> None:
        with suppress(Exception):  # a request never fails by what it could do without
            known = self._known_file()
            found = None if known is None else known.datastore()
            if found is None:
                self._tokenizer = self._tokenizer or local_tokenizer(self._name)
                found = None if self._tokenizer is None else default_datastore(self._tokenizer)
                if found is not None and known is not None:
                    known.note(found.tokenizer_fingerprint)
            if found is not None:
                # The first touch of a page takes a request ten times the time of a draft; what
                # follows a single token is looked up when it is needed.
                found.warm(next_tokens=False)
                self._found = found

    def _known_file(self) -> KnownFile | None:
        """Return the file of the tokenizer, None for one that a caller may have changed."""
        if self._tokenizer is None:
            return KnownFile.of(self._name)
        is_as_read = isinstance(self._tokenizer, FastTokenizer)
        return KnownFile.of(self._tokenizer.name_or_path) if is_as_read else None


@dataclass(frozen=True)
class KnownFile:
    """The file of a tokenizer, whose fingerprint is kept: reading it takes half a request.

    Attributes:
        folder: The cache folder.
        state: The path of the file, its size in bytes and its time of change in nanoseconds.
    """

    folder: Path
    state: tuple[str, int, int]

    @classmethod
    def of(cls, name: str) -> KnownFile | None:
        """Return the file of a model's name, None if that is not the path of one."""
        path, folder = Path(name).absolute(), private_folder("datastores")
        path = path / "tokenizer.json" if path.is_dir() else path
        if not name or folder is None or not path.is_file():
            return None
        about = path.stat()
        return cls(folder, (str(path), about.st_size, about.st_mtime_ns))

    def datastore(self) -> Datastore | None:
        """Return the datastore that the tokenizer of this file had, None if it is unknown."""
        known = self._read().get(self.state[0])
        if not isinstance(known, list) or tuple(known[:2]) != self.state[1:]:
            return None
        path = _datastore_path(self.folder, str(known[2]))
        found = _opened(path) if (path / "manifest.json").is_file() else None
        is_same = found is not None and found.tokenizer_fingerprint == known[2]
        return found if is_same else None

    def note(self, of_tokenizer: str) -> None:
        """Keep the fingerprint of the tokenizer of this file."""
        known = {name: each for name, each in self._read().items() if name != self.state[0]}
        known[self.state[0]] = [*self.state[1:], of_tokenizer]
        kept = dict([*known.items()][-_MOST_KNOWN:])
        write_whole(self._path, json.dumps(kept).encode())

    @property
    def _path(self) -> Path:
        return self.folder / "tokenizers.json"

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(read_kept(self._path, _MOST_KNOWN_BYTES) or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def _start_build(tokenizer: Any, out: Path) -> None:
    """Start the process that builds, unless one runs, failed lately, or the disk is full."""
    failed, given = out.with_suffix(".failed"), out.with_suffix(".json")
    with suppress(OSError):
        if out in _builds and _builds[out].poll() is None:
            return
        if failed.exists() and time.time() - failed.stat().st_mtime < _RETRY_S:
            return
        if shutil.disk_usage(out.parent).free < _FREE_BYTES:
            return
        about = {
            "tokenizer": tokenizer.backend_tokenizer.to_str(),
            "name": str(tokenizer.name_or_path),
            "eos": tokenizer.eos_token_id,
        }
        if not given.exists():
            write_whole(given, json.dumps(about).encode())
        _note(out)
        few = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        _builds[out] = subprocess.Popen(
            [sys.executable, "-m", "specds.indexing.default", str(out)],
            env={**os.environ, **few, _SWITCH: "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _note(out: Path) -> None:
    global _is_noted
    with _lock:
        if not _is_noted:
            _is_noted = True
            _log.warning(
                "specds builds a default datastore of this machine's library and documentation in "
                "%s, in the background; later requests draft from it (%s=0 turns this off)",
                out.parent,
                _SWITCH,
            )


def build(out: Path) -> None:
    """Build the default datastore at `out`, whose tokenizer is in a file next to it."""
    from tokenizers import Tokenizer as Backend

    from specds.corpora.machine import machine_corpus
    from specds.indexing.build import build_datastore
    from specds.indexing.options import BuildOptions

    given, failed = out.with_suffix(".json"), out.with_suffix(".failed")
    about = json.loads(given.read_text(encoding="utf-8"))
    backend = Backend.from_str(about["tokenizer"])
    tokenizer: Any = FastTokenizer(about["name"], backend, about["eos"], None, {})
    options = BuildOptions(max_tokens=_MOST_TOKENS, max_memory=1 << 28)
    try:
        build_datastore(machine_corpus(), tokenizer, out, options)
    except BlockingIOError:  # another process builds it
        return
    except Exception:
        failed.touch()
        raise
    given.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    build(Path(sys.argv[1]))
