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
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds._core import merge
from specds.build.local import open_builder, tokenise
from specds.build.report import BuildReport, Clock, peak_memory_bytes
from specds.corpora.document import Corpus, CorpusError, imported
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

    Args:
        corpus: What to index; its files must be where they are for all workers.
        tokenizer: Any transformers tokenizer; it is sent to the workers.
        out: The folder to make, in a folder that all workers share.
        options: How to build, and on which cluster.
        tokenizer_name: What to call the tokenizer in the manifest.
        progress: Told how far the build has come.

    Raises:
        CorpusError: A document cannot be read.
        ConnectionError: There is no cluster at the address.
        OSError: The disk is full, or a worker does not see the folder.
        RuntimeError: The cluster failed for good.
    """
    started = Clock.now()
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
        built = groups.build(progress)
        built_at = Clock.now()
    sources = [groups.datastore(number) for number in built.groups]
    if not sources:
        shutil.rmtree(folder)
        raise ValueError("the corpus is empty: add at least one document with tokens")
    datastore = merge(
        [target, *sources] if options.append else sources,
        target,
        overwrite=options.overwrite or options.append,
        prior_tokens=options.prior_tokens,
        progress=progress,
    )
    shutil.rmtree(folder)
    merged_at = Clock.now()
    return BuildReport(
        path=str(out),
        num_documents=datastore.num_documents,
        num_tokens=datastore.num_tokens,
        num_shards=datastore.num_shards,
        num_bytes=datastore.num_bytes,
        num_added_documents=built.num_documents,
        num_added_tokens=built.num_tokens,
        num_duplicates=built.num_duplicates,
        num_taken_up=groups.num_taken_up,
        text_bytes=built.text_bytes,
        tokenise_s=built_at.wall_s - started.wall_s,
        index_s=merged_at.wall_s - built_at.wall_s,
        tokenise_cpu_s=built_at.cpu_s - started.cpu_s,
        index_cpu_s=merged_at.cpu_s - built_at.cpu_s,
        peak_memory_bytes=peak_memory_bytes(),
        skipped=Counter(built.skipped),
    )


@dataclass
class _Built:
    """What was built of one group, or of several."""

    num_documents: int = 0
    num_tokens: int = 0
    num_duplicates: int = 0
    text_bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    is_full: bool = False
    groups: list[int] = field(default_factory=list)

    def add(self, other: _Built) -> None:
        self.num_documents += other.num_documents
        self.num_tokens += other.num_tokens
        self.num_duplicates += other.num_duplicates
        self.text_bytes += other.text_bytes
        self.skipped = dict(Counter(self.skipped) + Counter(other.skipped))
        self.is_full = other.is_full
        self.groups += other.groups if other.num_tokens else []


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
                "parts": len(corpus.parts),
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
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        num_groups = min(len(self._corpus.parts), most)
        _write(path, {"plan": plan, "groups": num_groups})
        return num_groups

    def datastore(self, number: int) -> Path:
        """Where the datastore of a group is."""
        return _datastore(self._folder, number)

    def build(self, progress: Progress) -> _Built:
        """Has all groups built, up to the limits of the options."""
        options, all_built = self._options, _Built()
        tasks = [self._start(number, options) for number in range(self._num_groups)]
        try:
            for number, task in enumerate(tasks):
                built = self._result(task)
                documents_left = _left(options.max_documents, all_built.num_documents)
                tokens_left = _left(options.max_tokens, all_built.num_tokens)
                if built.num_documents > documents_left or built.num_tokens > tokens_left:
                    _note(self._folder, number).unlink()
                    rest = replace(options, max_documents=documents_left, max_tokens=tokens_left)
                    built = self._result(self._start(number, rest))
                all_built.add(built)
                counts = {"documents": all_built.num_documents, "tokens": all_built.num_tokens}
                progress("tokenise", all_built.text_bytes, self._corpus.num_bytes, **counts)
                if all_built.is_full or all_built.num_documents == options.max_documents:
                    break
        finally:
            # Ray's own way to cancel ends the driver if a task is complete just then.
            _stop(self._folder).touch()
            if tasks:
                self._ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_S)
        progress("tokenise", 1, 1)
        return all_built

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

    def _result(self, task: Any) -> _Built:
        result = self._ray.get(task)
        if isinstance(result, Exception):
            raise result
        built: _Built = result
        return built


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
) -> _Built | Exception:
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
            built = _Built(
                builder.num_documents,
                builder.num_tokens,
                builder.num_duplicates,
                read.num_bytes,
                dict(read.skipped),
                builder.is_full,
                [number],
            )
            if built.num_tokens:
                builder.finish(report)
        _write(_note(folder, number), asdict(built))
    except _EXPECTED as error:
        return _portable(error)
    return built


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


def _read(folder: Path, number: int) -> _Built | None:
    """What a group holds that is complete."""
    path = _note(folder, number)
    return _Built(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _write(path: Path, content: dict[str, Any]) -> None:
    """Writes a file in one step."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(content, file)
    Path(file.name).replace(path)


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
    return imported("ray", extra="ray")


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
