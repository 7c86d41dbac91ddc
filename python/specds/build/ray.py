"""Builds a datastore on a Ray cluster.

Workers read the parts of a corpus and tokenise batches of documents into files, beside the shards
of the datastore that grows. Only the length and the hash of each document pass through the driver:
by them the builder decides, as in a local build, what is left out and where shards are cut. Each
shard is one task for any worker.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections import deque
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specds._core import build_shard, document_hashes
from specds.build.reading import Reading, batches, how_far
from specds.build.report import Clock
from specds.corpora.document import CorpusError, Skipped, imported
from specds.tokenization import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from transformers import PreTrainedTokenizerBase

    from specds._core import DatastoreBuilder
    from specds.build.options import BuildOptions
    from specds.build.report import Progress
    from specds.corpora import Corpus

_BLOCK_BYTES = 1 << 22
_SORTING_BYTES_PER_TOKEN = 8
_EXPECTED = (CorpusError, ImportError, MemoryError, OSError)
# Machines that are lent only for a while are taken away again and again.
_MAX_RETRIES = 16
_CANCEL_S = 30
# What Ray Data calls its threads that fetch results for the driver.
_FETCHING = "iter_threaded"


def tokenise_on_ray(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    builder: DatastoreBuilder,
    options: BuildOptions,
    progress: Progress,
) -> Reading:
    """Reads, tokenises and indexes on a cluster all documents that the builder was not given.

    What a worker was at when it was lost is done again by another. The builder has adopted all
    shards in the end, the same as in a local build.

    Args:
        corpus: What to index; its files must be where they are for all workers.
        tokenizer: Any transformers tokenizer; it is sent to the workers.
        builder: Its folder must be one that all workers share.
        options: Tells which cluster.
        progress: Told how far the build has come.

    Raises:
        CorpusError: A document cannot be read.
        ConnectionError: There is no cluster at the address.
        OSError: The disk is full, or a worker does not see the folder.
        ValueError: No worker has the memory that a shard takes.
        RuntimeError: The cluster failed for good.
    """
    read = Reading()
    ray = _ray()
    with _cluster(options.ray_address), _plain_errors(), _silence():
        parts = _Shared(ray.put(corpus.parts))
        shares = _shares_left(parts, len(corpus.parts), builder.num_given, read)
        with (
            _tokens_folder(builder.staging_folder) as folder,
            closing(_encoded(shares, parts, _Shared(ray.put(tokenizer)), folder)) as encoded,
            closing(_Shards(builder, folder)) as shards,
        ):
            for batch in encoded:
                shards.place(batch)
                read.add(batch.read)
                counts = {"documents": builder.num_documents, "tokens": builder.num_tokens}
                progress("tokenise", *how_far(read, builder, options, corpus), **counts)
                if builder.is_full:
                    break
            progress("tokenise", 1, 1)
            read.ended = Clock.now()
            shards.finish(progress)
    return read


def _ray() -> Any:
    """Ray, with its data library; it takes a second to import."""
    imported("ray.data", extra="ray")
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


@contextmanager
def _silence() -> Iterator[None]:
    """Ray Data speaks of errors only: progress is shown by others."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _tokens_folder(staging_folder: Path) -> Iterator[Path]:
    """A folder for what workers have tokenised."""
    folder, gone = staging_folder / "tokens", staging_folder / "tokens.gone"
    for left_by_killed in (folder, gone):
        shutil.rmtree(left_by_killed, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        # Workers whose results nobody waits for may still write, but not under another name.
        folder.rename(gone)
        shutil.rmtree(gone)


_loaded: dict[Any, Any] = {}


@dataclass(frozen=True)
class _Shared:
    """A value that each process of the cluster loads once, when it needs it."""

    reference: Any

    def load(self) -> Any:
        if self.reference not in _loaded:
            _loaded[self.reference] = _ray().get(self.reference)
        return _loaded[self.reference]


@dataclass(frozen=True)
class _Share:
    """The documents of a part, but for the first ones."""

    part: int
    num_before: int


@dataclass(frozen=True)
class _Texts:
    """Documents of a part that are tokenised together."""

    part: int
    number: int
    texts: list[str]
    read: Reading


@dataclass(frozen=True)
class _Encoded:
    """Documents whose tokens lie in the file `name`."""

    name: str
    lengths: np.ndarray
    hashes: bytes
    read: Reading


def _shares_left(parts: _Shared, num_parts: int, num_given: int, read: Reading) -> list[_Share]:
    """What is left of the corpus after so many documents, which are counted anew."""
    shares = [_Share(part, 0) for part in range(num_parts)]
    if num_given == 0:
        return shares
    num_before = num_given
    counted = _dataset(shares).flat_map(_step(partial(_count, parts, Path.cwd(), num_given)))
    with closing(_results(counted)) as counts:
        for part, (num_documents, counted_read) in enumerate(counts):
            if num_documents >= num_before:
                return [_Share(part, num_before), *shares[part + 1 :]]
            num_before -= num_documents
            read.add(counted_read)
    return []


def _encoded(
    shares: list[_Share], parts: _Shared, tokenizer: _Shared, folder: Path
) -> Generator[_Encoded]:
    # Steps that ask for as much of a machine run as one: a file would be tokenised by one worker.
    texts = _dataset(shares).flat_map(_step(partial(_read, parts, Path.cwd())), num_cpus=0.5)
    return _results(texts.flat_map(_step(partial(_encode, tokenizer, folder)), num_cpus=1))


def _dataset(items: list[Any]) -> Any:
    """Rows of one pickled item each, worked on in parallel and given back in order."""
    rows = [{"item": pickle.dumps(item)} for item in items]
    dataset = _ray().data.from_items(rows, override_num_blocks=max(1, len(rows)))
    dataset.context.execution_options.preserve_order = True
    dataset.context.target_max_block_size = _BLOCK_BYTES
    dataset.context.enable_progress_bars = False
    return dataset


def _step(work: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Work on the rows of a dataset.

    An error that may well happen becomes the last item: it reaches the driver in its place, after
    all that comes before it, and nobody tries again.
    """

    def step(row: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
        item = pickle.loads(row["item"])
        try:
            for result in [item] if isinstance(item, Exception) else work(item):
                yield {"item": pickle.dumps(result)}
        except _EXPECTED as error:
            yield {"item": pickle.dumps(_portable(error))}

    return step


def _portable(error: Exception) -> Exception:
    """The error, if it can be pickled, or one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class may do
        return CorpusError(f"{type(error).__name__}: {error}")
    return error


def _results(dataset: Any) -> Generator[Any]:
    earlier = set(threading.enumerate())
    try:
        with closing(_items(dataset)) as items:
            yield from items
    finally:
        # Whoever stops early leaves threads that end soon. One that meets a connection which was
        # closed meanwhile ends the whole process, with no word about it.
        for thread in set(threading.enumerate()) - earlier:
            if thread.name == _FETCHING:
                thread.join(_CANCEL_S)


def _items(dataset: Any) -> Generator[Any]:
    for row in dataset.iter_rows():
        item = pickle.loads(row["item"])
        if isinstance(item, Exception):
            raise item
        yield item


def _count(parts: _Shared, cwd: Path, at_most: int, share: _Share) -> Iterator[tuple[int, Reading]]:
    read = Reading()
    num_documents = 0
    for document in islice(_documents(parts, cwd, share, read), at_most):
        num_documents += 1
        read.num_bytes += document.num_bytes
    yield num_documents, read


def _read(parts: _Shared, cwd: Path, share: _Share) -> Iterator[_Texts]:
    read = Reading()
    items = _documents(parts, cwd, share, read)
    for document in islice(items, share.num_before):
        read.num_bytes += document.num_bytes
    number = 0
    for number, batch in enumerate(batches(items), start=1):
        read.num_bytes += sum(document.num_bytes for document in batch)
        yield _Texts(share.part, number, [document.text for document in batch], read.take())
    yield _Texts(share.part, number + 1, [], read.take())


def _documents(parts: _Shared, cwd: Path, share: _Share, read: Reading) -> Iterator[Any]:
    with suppress(OSError):  # only relative paths need it
        os.chdir(cwd)
    for item in parts.load()[share.part]:
        if isinstance(item, Skipped):
            read.leave_out(item)
        else:
            yield item


def _encode(tokenizer: _Shared, folder: Path, batch: _Texts) -> Iterator[_Encoded]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many tasks as cores
    tokens, lengths = encode_batch(tokenizer.load(), batch.texts)
    name = f"{batch.part:06}-{batch.number:06}.npz"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"a worker does not see {folder}: build in a folder that all of them share"
        )
    if batch.texts:
        _write(folder / name, tokens, lengths)
    yield _Encoded(name, lengths, document_hashes(tokens, lengths), batch.read)


def _write(path: Path, tokens: np.ndarray, lengths: np.ndarray) -> None:
    """Writes a file in one step: a task that is done again must not take it from a reader."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        np.savez(file, tokens=tokens, lengths=lengths)
    Path(file.name).replace(path)


Files = list[tuple[str, np.ndarray]]
"""The names of files, and the shard of each document in them."""


@dataclass
class _Shard:
    number: int
    files: Files = field(default_factory=list)
    num_tokens: int = 0
    task: Any = None


class _Shards:
    """Has each shard built once all its documents are known, and adopted in order."""

    def __init__(self, builder: DatastoreBuilder, folder: Path) -> None:
        self._ray = _ray()
        self._builder = builder
        self._folder = folder
        self._growing: dict[int, _Shard] = {}
        self._running: deque[_Shard] = deque()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        workers = [node for node in nodes if node.get("CPU", 0) >= 1]
        self._max_running = max(2, int(sum(worker["CPU"] for worker in workers)))
        # A cluster that grows by itself may begin without workers.
        self._most_memory = max((worker.get("memory", 0) for worker in workers), default=math.inf)
        self._build = self._ray.remote(_build)

    def place(self, batch: _Encoded) -> None:
        """Puts documents into their shards; has those built that are complete by that."""
        places = self._builder.place_documents(batch.hashes, batch.lengths)
        last = places.max(initial=-1)
        for number in np.unique(places[places >= 0]).tolist():
            shard = self._growing.setdefault(number, _Shard(number))
            shard.files.append((batch.name, places))
            shard.num_tokens += int((batch.lengths[places == number] + 1).sum())
        if last < 0:
            self._remove(batch.name)
        for number in sorted(number for number in self._growing if number < last):
            self._start(number)
        while self._running and self._ray.wait([self._running[0].task], timeout=0)[0]:
            self._adopt()

    def finish(self, progress: Progress) -> None:
        """Waits for all shards."""
        for number in sorted(self._growing):
            self._start(number)
            self._report(progress)
        while self._running:
            self._adopt()
            self._report(progress)

    def close(self) -> None:
        """Ends what still runs, so that nobody writes where all is to be removed."""
        tasks = [shard.task for shard in self._running]
        for task in tasks:
            self._ray.cancel(task, force=True)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_S)

    def _start(self, number: int) -> None:
        while len(self._running) >= self._max_running:
            self._adopt()
        shard = self._growing.pop(number)
        build = self._build.options(memory=self._memory(shard), max_retries=_MAX_RETRIES)
        folder, options = self._builder.staging_folder, self._builder.shard_options
        shard.task = build.remote(folder, self._folder, shard.files, number, options)
        self._running.append(shard)

    def _memory(self, shard: _Shard) -> int:
        needed = min(
            shard.num_tokens * _SORTING_BYTES_PER_TOKEN,
            self._builder.shard_options["max_memory"],
        )
        if needed > self._most_memory:
            raise ValueError(
                f"a shard takes {needed} bytes of memory, and no worker has more than "
                f"{self._most_memory:.0f}: set --max-memory"
            )
        return needed

    def _adopt(self) -> None:
        shard = self._running[0]
        self._builder.adopt(self._ray.get(shard.task))
        self._running.popleft()
        for name, places in shard.files:
            if places.max() == shard.number:
                self._remove(name)

    def _report(self, progress: Progress) -> None:
        total = self._builder.num_tokens
        waiting = (*self._growing.values(), *self._running)
        done = total - sum(shard.num_tokens for shard in waiting)
        progress("sort", done, total)
        progress("write", done, total)

    def _remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def _build(
    staging_folder: Path, folder: Path, files: Files, number: int, options: dict[str, int]
) -> str:
    def placed() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for name, places in files:
            with np.load(folder / name) as file:
                tokens, lengths = file["tokens"], file["lengths"]
            chosen = places == number
            yield tokens[np.repeat(chosen, lengths)], lengths[chosen]

    return build_shard(staging_folder, placed(), **options)
