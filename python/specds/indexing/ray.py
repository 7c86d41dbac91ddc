"""Builds of datastores on a Ray cluster.

The corpus is divided into groups of whole parts. One task builds a datastore of each group, as a
local build does, in a folder next to the target that all workers share; the driver merges them. If
a worker is lost, its group is built again. A resumed build keeps complete groups.

Duplicates of other groups are found first: tasks read the documents and return hashes, and each
group leaves out those that an earlier one has.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import merge
from specds._lazy import imported
from specds.corpora.document import COPY, Corpus, CorpusError, Document, Item, Part, Skipped
from specds.corpora.files import digest
from specds.indexing.local import open_builder, tokenize_corpus
from specds.indexing.options import BuildOptions
from specds.indexing.report import BuildReport, IngestStats, Progress
from specds.models.cache_folder import write_whole
from specds.models.tokenization import Tokenizer, fingerprint

# Machines that are lent only for a while are taken away again and again.
_MAX_RETRIES = 16
_CANCEL_S = 30
_GROUPS_PER_CORE = 2
_LEAST_GROUPS = 8


def build_on_ray(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: str | PathLike[str],
    options: BuildOptions,
    tokenizer_name: str | None,
    progress: Progress,
) -> BuildReport:
    """Build the datastore of a corpus at `out` on a cluster, as `specds.build_datastore` does.

    Of duplicates in different groups, the first one stays; those of a datastore that the corpus is
    added to remain until `specds compact --drop-duplicates`. All workers must have access to the
    files of the corpus and the folder of `out`.
    """
    started = time.perf_counter()
    target = Path(out).absolute()
    folder = target.with_name(f".{target.name}.build-parts")
    # Other writers are locked out until the shards are merged.
    with (
        open_builder(corpus, tokenizer, out, options, tokenizer_name),
        _cluster(options.ray_address) as ray,
    ):
        of_worker, num_cores = _for_workers(ray, options)
        most = max(num_cores * _GROUPS_PER_CORE, _LEAST_GROUPS)
        plan = _plan(corpus, tokenizer, of_worker)
        notes = _load_checkpoints(folder, plan, min(len(corpus.parts), most))
        num_resumed = sum(_built(note)[0].num_documents for note in notes if note.exists())
        whole = ray.put((corpus, tokenizer, tokenizer_name))
        try:
            num_groups = len(notes) if options.drop_duplicates else 0
            copies = _copies(ray, whole, num_groups)
            read, sources = _build_groups(
                ray, whole, notes, copies, of_worker, corpus.num_bytes, progress
            )
        finally:
            if not any(note.exists() for note in notes):
                shutil.rmtree(folder)
        built_at = time.perf_counter()
    if not sources:
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(read.nothing())
    datastore = merge(
        [target, *sources] if options.append else sources,
        target,
        overwrite=options.overwrite or options.append,
    )
    shutil.rmtree(folder)
    return BuildReport.of(out, datastore, read, num_resumed, started, built_at)


def _for_workers(ray: Any, options: BuildOptions) -> tuple[BuildOptions, int]:
    """Return the options of a worker, and the number of cores of all workers."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    workers = [node for node in nodes if node.get("CPU", 0) >= 1]
    # Half is for sorting, half for what else a worker does.
    shares = [int(node["memory"] / node["CPU"]) // 2 for node in workers if "memory" in node]
    memory = min([options.sorting_memory(), *shares])
    of_worker = replace(options, engine="local", append=False, max_memory=memory)
    return of_worker, int(sum(worker["CPU"] for worker in workers))


def _plan(corpus: Corpus, tokenizer: Tokenizer, options: BuildOptions) -> str:
    """Return the build key: equal keys give equal groups."""
    limits = (options.drop_duplicates, options.max_documents, options.max_tokens)
    parts = (part.state for part in corpus.parts)
    about = map(str, (*limits, options.max_shard_tokens, corpus.name, fingerprint(tokenizer)))
    return digest((*about, *parts))


def _load_checkpoints(folder: Path, plan: str, num_groups: int) -> list[Path]:
    """Return the groups' note files: those of a stopped build of this plan, or of a new build."""
    begun = next(folder.glob(f"{plan}-*"), None)
    if begun is None:
        shutil.rmtree(folder, ignore_errors=True)
        begun = folder / f"{plan}-{num_groups}"
        begun.mkdir(parents=True)
    _stop_file(begun).unlink(missing_ok=True)
    num_groups = int(begun.name.rpartition("-")[2])
    return [begun / f"{number:05}.json" for number in range(num_groups)]


def _copies(ray: Any, whole: Any, num_groups: int) -> list[Any]:
    """Return the hashes of each group's documents that an earlier group has."""
    read = ray.remote(_hashes).options(max_retries=_MAX_RETRIES)
    tasks = [read.remote(whole, number, num_groups, Path.cwd()) for number in range(num_groups)]
    hashes = [_result(ray, task) for task in tasks]
    if len(hashes) < 2:
        return []
    flat = np.concatenate(hashes)
    is_copy = np.ones(len(flat), bool)
    is_copy[np.unique(flat, return_index=True)[1]] = False
    groups = np.split(np.arange(len(flat)), np.cumsum([len(each) for each in hashes])[:-1])
    return [ray.put(flat[group[is_copy[group]]]) for group in groups]


def _hashes(
    whole: tuple[Corpus, Tokenizer, str | None], number: int, num_groups: int, cwd: Path
) -> NDArray[np.uint64]:
    """Return the distinct hashes of a group's documents."""
    with suppress(OSError):
        os.chdir(cwd)
    hashes = set()
    # The build of the group raises it, unless a limit is reached before.
    with suppress(Exception):
        for item in _group(whole[0], number, num_groups):
            if isinstance(item, Document):
                hashes.add(_hash(item))
    return np.fromiter(hashes, np.uint64, len(hashes))


def _hash(document: Document) -> int:
    tokens = document.token_ids
    content = document.text.encode() if tokens is None else tokens.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def _group(corpus: Corpus, number: int, num_groups: int) -> Corpus:
    """Return the parts of a group."""
    bounds = (each * len(corpus.parts) // num_groups for each in (number, number + 1))
    return Corpus(corpus.name, corpus.parts[slice(*bounds)])


@dataclass(frozen=True)
class _WithoutCopies:
    """A part without documents that an earlier group has."""

    part: Part
    copies: frozenset[int]

    @property
    def num_bytes(self) -> int:
        return self.part.num_bytes

    @property
    def state(self) -> str:
        return self.part.state

    def __iter__(self) -> Iterator[Item]:
        for item in self.part:
            if isinstance(item, Document) and _hash(item) in self.copies:
                yield Skipped(item.name, COPY, item.num_bytes)
            else:
                yield item


def _build_groups(
    ray: Any,
    whole: Any,
    notes: list[Path],
    copies: list[Any],
    options: BuildOptions,
    num_bytes: int,
    progress: Progress,
) -> tuple[IngestStats, list[Path]]:
    """Build all groups up to the limits of the options; return statistics and paths."""
    build = ray.remote(_build).options(memory=options.max_memory, max_retries=_MAX_RETRIES)
    read, sources = IngestStats(), []
    copies = copies or [()] * len(notes)
    given = [(len(notes), Path.cwd(), each) for each in copies]
    tasks = [
        build.remote(whole, number, note, options, *given[number])
        for number, note in enumerate(notes)
    ]
    try:
        for number, (note, task) in enumerate(zip(notes, tasks, strict=True)):
            built, source = _result(ray, task)
            documents_left = _left(options.max_documents, read.num_documents)
            tokens_left = _left(options.max_tokens, read.num_tokens)
            if built.num_documents > documents_left or built.num_tokens > tokens_left:
                note.unlink()
                rest = replace(options, max_documents=documents_left, max_tokens=tokens_left)
                built, source = _result(
                    ray, build.remote(whole, number, note, rest, *given[number])
                )
            read.add(built)
            sources += [source] if built.num_tokens else []
            counts = {"documents": read.num_documents, "tokens": read.num_tokens}
            progress("tokenize", read.num_bytes, num_bytes, **counts)
            if read.is_full or read.num_documents == options.max_documents:
                break
    finally:
        # Ray's own way to cancel ends the driver if a task is complete just then.
        if tasks:
            _stop_file(notes[0].parent).touch()
            ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_S)
    progress("tokenize", 1, 1)
    return read, sources


def _left(limit: int | None, taken: int) -> int:
    return (1 << 63 if limit is None else limit) - taken


def _build(
    whole: tuple[Corpus, Tokenizer, str | None],
    number: int,
    note: Path,
    options: BuildOptions,
    num_groups: int,
    cwd: Path,
    copies: Iterable[int],
) -> tuple[IngestStats, Path]:
    """Build the datastore of a group unless it is there; return its statistics and path."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many tasks as cores
    with suppress(OSError):  # only relative paths need it
        os.chdir(cwd)
    if not note.parent.is_dir():
        raise FileNotFoundError(
            f"a worker does not see {note.parent}: build in a folder that all of them share"
        )
    if note.exists():
        return _built(note)

    def report(*_: Any, **__: Any) -> None:
        if _stop_file(note.parent).exists():
            raise InterruptedError("the build was ended")

    report()
    corpus, tokenizer, tokenizer_name = whole
    corpus = _group(corpus, number, num_groups)
    known = frozenset(map(int, copies))
    if known:
        corpus = Corpus(corpus.name, tuple(_WithoutCopies(part, known) for part in corpus.parts))
    # Of a name of its own: a worker that is thought lost may be at work still.
    out = note.with_name(f"{note.stem}-{secrets.token_hex(8)}.specds")
    with open_builder(corpus, tokenizer, out, options, tokenizer_name) as builder:
        try:
            read = tokenize_corpus(corpus, tokenizer, builder, options, report)
        except OSError as error:
            if type(error).__module__ == "builtins":
                raise
            # Those of clients of the web cannot be made again by the driver.
            raise CorpusError(f"{type(error).__name__}: {error}") from error
        num_copies = read.skipped.pop(COPY, 0)
        read.num_read += num_copies
        read.num_duplicates += num_copies
        if read.num_tokens:
            builder.finish(report)
    write_whole(note, json.dumps({"name": out.name, "read": vars(read)}).encode())
    return read, out


def _built(note: Path) -> tuple[IngestStats, Path]:
    """Read the checkpoint of a complete group."""
    told = json.loads(note.read_text(encoding="utf-8"))
    return IngestStats(**told["read"]), note.with_name(told["name"])


def _stop_file(folder: Path) -> Path:
    """Return the file whose existence stops tasks."""
    return folder / "stop"


def _result(ray: Any, task: Any) -> Any:
    """Return a task's result; its exception is raised without the cluster's traceback."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"the Ray cluster failed: {_first_line(error)}") from error


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster; it takes a second to import."""
    ray = imported("ray")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address is not None:
            _ping_cluster(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        place = "" if address is None else f" at {address}"
        raise ConnectionError(f"cannot reach a Ray cluster{place}: {_first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _ping_cluster(address: str) -> None:
    """Fail fast if no cluster answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
