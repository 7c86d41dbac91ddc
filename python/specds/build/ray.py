"""Builds a datastore on a Ray cluster.

The corpus is cut into groups of whole parts. One task builds a datastore of each group, as a local
build does, in a folder beside the target that all workers share; the driver merges these. A task
whose worker is lost is started again and goes on from where that one was.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds._core import merge
from specds._lazy import imported
from specds.build.local import open_builder, tokenise
from specds.build.report import BuildReport, Reading
from specds.cache_folder import write_whole
from specds.corpora.document import Corpus, CorpusError
from specds.corpora.files import digest
from specds.tokenization import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from transformers import PreTrainedTokenizerBase

    from specds.build.options import BuildOptions
    from specds.build.report import Progress

_EXPECTED = (CorpusError, ImportError, MemoryError, OSError)
# Machines that are lent only for a while are taken away again and again.
_MAX_RETRIES = 16
_CANCEL_S = 30
# A file system may need as long to learn that the worker which held a lock is gone.
_LOCKED_S = 120
_GROUPS_PER_CORE = 2
_LEAST_GROUPS = 8


def build_on_ray(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    out: str | PathLike[str],
    options: BuildOptions,
    tokenizer_name: str | None,
    progress: Progress,
) -> BuildReport:
    """Builds the datastore of a corpus at `out` on a cluster, as `specds.build_datastore` does.

    It has the documents of a local build, in shards of their own for each group of parts. A
    document that comes again in another group is kept: `specds compact --drop-duplicates` leaves
    it out.

    The files of the corpus must be where they are for all workers, and `out` in a folder that all
    of them share. The tokenizer is sent to the workers.

    Raises:
        CorpusError: A document cannot be read.
        ConnectionError: There is no cluster at the address.
        OSError: The disk is full, or a worker does not see the folder.
        RuntimeError: The cluster failed for good.
    """
    started = time.perf_counter()
    target = Path(out).absolute()
    folder = target.with_name(f".{target.name}.build-parts")
    # Until the shards are merged, nobody else may write there.
    with (
        open_builder(corpus, tokenizer, out, options, tokenizer_name),
        _cluster(options.ray_address),
        _plain_errors(),
        _kept_if_begun(folder),
    ):
        groups = _Groups(corpus, tokenizer, folder, options, tokenizer_name)
        read, sources = groups.build(progress)
        built_at = time.perf_counter()
    if not sources:
        shutil.rmtree(folder)
        raise ValueError(read.nothing())
    datastore = merge(
        [target, *sources] if options.append else sources,
        target,
        overwrite=options.overwrite or options.append,
        prior_tokens=options.prior_tokens,
        progress=progress,
    )
    shutil.rmtree(folder)
    return BuildReport.of(out, datastore, read, groups.num_taken_up, started, built_at)


class _Groups:
    """The groups of a corpus: a datastore and a note of what is in it for each, in one folder."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        options: BuildOptions,
        tokenizer_name: str | None,
    ) -> None:
        self._ray = _ray()
        self._corpus = corpus
        self._folder = folder
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        workers = [node for node in nodes if node.get("CPU", 0) >= 1]
        # Half is for sorting, half for what else a worker does.
        shares = [int(node["memory"] / node["CPU"]) // 2 for node in workers if "memory" in node]
        most = min([options.sorting_memory(), *shares])
        self._memory = most if options.max_memory is None else min(options.max_memory, most)
        self._options = replace(
            options,
            engine="local",
            append=False,
            overwrite=True,  # of what a killed build has left
            prior_tokens=0,
            max_memory=self._memory,
        )
        num_cores = int(sum(worker["CPU"] for worker in workers))
        self._num_groups = self._take_up(
            {
                "corpus": corpus.name,
                "parts": digest(part.state for part in corpus.parts),
                "tokenizer": fingerprint(tokenizer),
                "options": [
                    *(options.drop_duplicates, options.max_documents, options.max_tokens),
                    options.max_shard_tokens,
                ],
            },
            max(num_cores * _GROUPS_PER_CORE, _LEAST_GROUPS),
        )
        notes = (_read(folder, number) for number in range(self._num_groups))
        self.num_taken_up = sum(note.num_documents for note in notes if note)
        self._parts, self._tokenizer = self._ray.put(corpus.parts), self._ray.put(tokenizer)
        self._tokenizer_name = tokenizer_name

    def _take_up(self, plan: dict[str, Any], most: int) -> int:
        """The number of groups: that of a build of the same plan which has begun, or a new one."""
        path = self._folder / "plan"
        with suppress(OSError, ValueError):
            noted = json.loads(path.read_text(encoding="utf-8"))
            _stop(self._folder).unlink(missing_ok=True)
            if noted["plan"] == plan:
                return int(noted["groups"])
        if self._folder.is_symlink() or (self._folder.exists() and not path.is_file()):
            raise FileExistsError(
                f"{self._folder} is in the way: it was not left by a build: move it away"
            )
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        num_groups = min(len(self._corpus.parts), most)
        _write(path, {"plan": plan, "groups": num_groups})
        return num_groups

    def build(self, progress: Progress) -> tuple[Reading, list[Path]]:
        """Has all groups built, up to the limits of the options: what was read, and where it is."""
        options, read, datastores = self._options, Reading(), []
        tasks = [self._start(number, options) for number in range(self._num_groups)]
        try:
            for number, task in enumerate(tasks):
                built = self._result(task)
                documents_left = _left(options.max_documents, read.num_documents)
                tokens_left = _left(options.max_tokens, read.num_tokens)
                if built.num_documents > documents_left or built.num_tokens > tokens_left:
                    _note(self._folder, number).unlink()
                    rest = replace(options, max_documents=documents_left, max_tokens=tokens_left)
                    built = self._result(self._start(number, rest))
                read.add(built)
                if built.num_tokens:
                    datastores.append(_datastore(self._folder, number))
                counts = {"documents": read.num_documents, "tokens": read.num_tokens}
                progress("tokenise", read.num_bytes, self._corpus.num_bytes, **counts)
                if read.is_full or read.num_documents == options.max_documents:
                    break
        finally:
            # Ray's own way to cancel ends the driver if a task is complete just then.
            _stop(self._folder).touch()
            if tasks:
                self._ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_S)
        progress("tokenise", 1, 1)
        return read, datastores

    def _start(self, number: int, options: BuildOptions) -> Any:
        build = self._ray.remote(_build).options(memory=self._memory, max_retries=_MAX_RETRIES)
        first = number * len(self._corpus.parts) // self._num_groups
        last = (number + 1) * len(self._corpus.parts) // self._num_groups
        return build.remote(
            self._parts,
            self._tokenizer,
            slice(first, last),
            self._corpus.name,
            self._tokenizer_name,
            self._folder,
            number,
            options,
            Path.cwd(),
        )

    def _result(self, task: Any) -> Reading:
        result: Reading | Exception = self._ray.get(task)
        if isinstance(result, Exception):
            raise result
        return result


def _left(limit: int | None, taken: int) -> int:
    return (1 << 63 if limit is None else limit) - taken


def _build(
    parts: tuple[Any, ...],
    tokenizer: PreTrainedTokenizerBase,
    of_group: slice,
    name: str,
    tokenizer_name: str | None,
    folder: Path,
    number: int,
    options: BuildOptions,
    cwd: Path,
) -> Reading | Exception:
    """Builds the datastore of a group. What may well go wrong is given back: nobody tries again."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many tasks as cores
    with suppress(OSError):  # only relative paths need it
        os.chdir(cwd)
    try:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"a worker does not see {folder}: build in a folder that all of them share"
            )
        if built := _read(folder, number):
            return built
        corpus = Corpus(name, parts[of_group], None)
        out = _datastore(folder, number)

        def report(*_: Any, **__: Any) -> None:
            if _stop(folder).exists():
                raise InterruptedError("the build was ended")

        report()
        with _unlocked(corpus, tokenizer, out, options, tokenizer_name) as builder:
            read = tokenise(corpus, tokenizer, builder, options, report)
            if read.num_tokens:
                builder.finish(report)
        _write(_note(folder, number), vars(read))
    except _EXPECTED as error:
        return _portable(error)
    return read


def _unlocked(corpus: Corpus, *arguments: Any) -> Any:
    """Starts a build, also where another worker that is thought lost ends it just now."""
    until = time.monotonic() + _LOCKED_S
    while True:
        try:
            return open_builder(corpus, *arguments)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _datastore(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.specds"


def _note(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.json"


def _stop(folder: Path) -> Path:
    """The file that tells tasks to end."""
    return folder / "stop"


def _read(folder: Path, number: int) -> Reading | None:
    """What a group holds that is complete."""
    path = _note(folder, number)
    return Reading(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _write(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content).encode())


@contextmanager
def _kept_if_begun(folder: Path) -> Iterator[None]:
    """Leaves nothing of a build that failed before any group was complete."""
    try:
        yield
    except BaseException:
        if not any(folder.glob("*.json")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _portable(error: Exception) -> Exception:
    """The error, if it can be pickled, or one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class may do
        return CorpusError(f"{type(error).__name__}: {error}")
    return error


def _ray() -> Any:
    """Ray; it takes a second to import."""
    return imported("ray")


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Connects to a cluster, unless the process is connected to one."""
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address is not None:
            _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        place = "" if address is None else f" at {address}"
        raise ConnectionError(f"cannot reach a Ray cluster{place}: {_first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises at once what Ray takes minutes to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raises what a task has raised as it was, without the cluster's pages about it."""
    exceptions = _ray().exceptions
    try:
        yield
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, (*_EXPECTED, ValueError)):
            raise error.cause from None
        raise
    except exceptions.RayError as error:
        raise RuntimeError(f"the Ray cluster failed: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
