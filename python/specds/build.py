"""Builds a datastore: documents of a corpus -> tokens -> suffix arrays on disk."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from specds._core import DEFAULT_PRIOR_TOKENS, DatastoreBuilder
from specds.bookmarks import documents_left
from specds.tokenization import encode_batch, fingerprint, vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    import numpy as np
    from transformers import PreTrainedTokenizerBase

    from specds.corpora import Corpus, Document, Skipped

T = TypeVar("T")
R = TypeVar("R")

_BATCH_BYTES = 1 << 20
_UNLIMITED = (1 << 64) - 1


class Progress(Protocol):
    """Told how far a build has come."""

    def __call__(self, stage: str, done: int, total: int | None, **counts: int) -> object:
        """Stage `tokenise` counts bytes of text, others tokens or shards; None is unknown.

        Args:
            stage: What is being done.
            done: How much of it.
            total: How much it is in all.
            counts: `documents` and `tokens` so far.
        """
        ...


@dataclass(frozen=True)
class BuildOptions:
    """How a datastore is built.

    Attributes:
        overwrite: Replace what is at the path, once the new datastore is complete.
        append: Add to the datastore at the path, in shards of its own.
        drop_duplicates: Leave out documents that came before, and count them.
        max_documents: Index at most so many documents.
        max_tokens: Index at most so many tokens, separators included.
        max_memory: Bytes that sorting may take; half of the machine's memory by default.
        max_shard_tokens: Cut shards smaller than memory asks for.
        position_stride: Index every second (2), third (3) ... position only, for small disks.
        max_duplicates: Index at most so many places that begin with the same 32 tokens; 0 is all.
        prior_tokens: Fit the prior of drafters to at most so many tokens of the datastore; 0 is
            none.
        engine: ``local``, or ``ray`` for a cluster.
        ray_address: Of a running cluster; by default the one that Ray finds, or one it starts.
    """

    overwrite: bool = False
    append: bool = False
    drop_duplicates: bool = True
    max_documents: int | None = None
    max_tokens: int | None = None
    max_memory: int | None = None
    max_shard_tokens: int | None = None
    position_stride: int = 1
    max_duplicates: int = 0
    prior_tokens: int = DEFAULT_PRIOR_TOKENS
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None

    def sorting_memory(self) -> int:
        """Bytes that sorting may take."""
        if self.max_memory is not None:
            return self.max_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True)
class BuildReport:
    """What a build did and what it cost.

    Attributes:
        num_documents: Documents of the datastore.
        num_tokens: Tokens of the datastore, separators included.
        num_shards: Its shards.
        num_bytes: Its size on disk.
        num_added_documents: Those of them that this build has added; fewer than all where it
            appended.
        num_added_tokens: As many tokens.
        num_duplicates: Documents left out as they had come before.
        num_taken_up: Documents that an earlier build, which was killed, had been through.
        text_bytes: Size of the documents as they were read.
        tokenise_s: Seconds for reading and tokenising.
        index_s: Seconds for sorting, writing and the prior, after that.
        tokenise_cpu_s: Seconds of all cores while tokenising; of this machine alone.
        index_cpu_s: As many seconds of all cores; of this machine alone.
        peak_memory_bytes: The largest resident set of this process so far.
        skipped: What the corpus left out, counted by reason.
    """

    path: str
    num_documents: int
    num_tokens: int
    num_shards: int
    num_bytes: int
    num_added_documents: int
    num_added_tokens: int
    num_duplicates: int
    num_taken_up: int
    text_bytes: int
    tokenise_s: float
    index_s: float
    tokenise_cpu_s: float
    index_cpu_s: float
    peak_memory_bytes: int
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def bytes_per_token(self) -> float:
        """Bytes on disk for each token of the datastore."""
        return self.num_bytes / self.num_tokens

    @property
    def tokens_per_s(self) -> float:
        """Tokens added a second, tokenising included."""
        return self.num_added_tokens / (self.tokenise_s + self.index_s)

    def to_dict(self) -> dict[str, Any]:
        """Everything above, and the derived figures, as plain values."""
        derived = {"bytes_per_token": self.bytes_per_token, "tokens_per_s": self.tokens_per_s}
        # `asdict` would make another counter of the pairs in this one.
        return asdict(self) | derived | {"skipped": dict(self.skipped)}


def build_datastore(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    out: str | PathLike[str],
    options: BuildOptions | None = None,
    *,
    tokenizer_name: str | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Builds the datastore of a corpus at `out`, or adds the corpus to the one there.

    Whatever goes wrong, `out` is left as it was; the same call then goes on where the last one was
    ended.

    Args:
        corpus: What to index, from `specds.open_corpus`.
        tokenizer: A transformers tokenizer; a fast one uses all cores.
        out: The folder to make.
        options: How to build.
        tokenizer_name: What to call the tokenizer in the manifest; its own name by default.
        progress: Told how far the build has come.

    Raises:
        FileExistsError: `out` exists and may not be there.
        CorpusError: A document cannot be read.
        ValueError: The corpus holds no tokens, or the datastore is of another tokenizer.
        BlockingIOError: Another process builds at `out`.
        OSError: The disk is full, or `out` cannot be written.
    """
    options = options or BuildOptions()
    progress = progress or _silent
    builder = open_builder(corpus, tokenizer, out, options, tokenizer_name)
    with builder:
        num_taken_up, before = builder.num_given, Clock.now()
        if options.engine == "ray":
            from specds.ray_engine import tokenise_on_ray as tokenise
        else:
            tokenise = _tokenise
        read = tokenise(corpus, tokenizer, builder, options, progress)
        tokenised = read.ended or Clock.now()
        added = (builder.num_documents, builder.num_tokens, builder.num_duplicates)
        datastore = builder.finish(progress)
    indexed = Clock.now()
    return BuildReport(
        path=str(out),
        num_documents=datastore.num_documents,
        num_tokens=datastore.num_tokens,
        num_shards=datastore.num_shards,
        num_bytes=datastore.num_bytes,
        num_added_documents=added[0],
        num_added_tokens=added[1],
        num_duplicates=added[2],
        num_taken_up=num_taken_up,
        text_bytes=read.num_bytes,
        tokenise_s=tokenised.wall_s - before.wall_s,
        index_s=indexed.wall_s - tokenised.wall_s,
        tokenise_cpu_s=tokenised.cpu_s - before.cpu_s,
        index_cpu_s=indexed.cpu_s - tokenised.cpu_s,
        peak_memory_bytes=peak_memory_bytes(),
        skipped=read.skipped,
    )


def open_builder(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    out: str | PathLike[str],
    options: BuildOptions,
    tokenizer_name: str | None = None,
) -> DatastoreBuilder:
    """Starts the build of a corpus at `out`, or takes up the one that was killed there."""
    size = vocab_size(tokenizer)
    eos = tokenizer.eos_token_id
    limits = {
        "max_documents": options.max_documents,
        "max_tokens": options.max_tokens,
        "max_shard_tokens": options.max_shard_tokens,
    }
    return DatastoreBuilder(
        out,
        vocab_size=size,
        separator=size if eos is None else eos,
        tokenizer_name=tokenizer_name or tokenizer.name_or_path,
        tokenizer_fingerprint=fingerprint(tokenizer),
        corpus=[corpus.name],
        max_memory=options.sorting_memory(),
        position_stride=options.position_stride,
        max_duplicates=options.max_duplicates,
        prior_tokens=options.prior_tokens,
        drop_duplicates=options.drop_duplicates,
        overwrite=options.overwrite,
        append=options.append,
        plan=json.dumps({"corpus": corpus.name, "engine": options.engine}),
        **{name: limit for name, limit in limits.items() if limit is not None},
    )


@dataclass
class Reading:
    """What was read of a corpus.

    Attributes:
        num_bytes: The size of it.
        skipped: What the corpus left out, counted by reason.
        ended: When the last document was tokenised, where the engine has gone on to index.
    """

    num_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    ended: Clock | None = None

    def leave_out(self, item: Skipped) -> None:
        """Counts what the corpus leaves out."""
        self.num_bytes += item.num_bytes
        self.skipped[item.reason] += 1

    def add(self, other: Reading) -> None:
        """Counts what another process has read."""
        self.num_bytes += other.num_bytes
        self.skipped += other.skipped

    def take(self) -> Reading:
        """What was read since the last call."""
        taken = Reading(self.num_bytes, self.skipped)
        self.num_bytes, self.skipped = 0, Counter()
        return taken


Encoded: TypeAlias = "tuple[np.ndarray, np.ndarray]"


def _tokenise(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    builder: DatastoreBuilder,
    options: BuildOptions,
    progress: Progress,
) -> Reading:
    """Gives the builder all documents that it has not been given before."""
    read = Reading()

    def report() -> None:
        counts = {"documents": builder.num_documents, "tokens": builder.num_tokens}
        progress("tokenise", *how_far(read, builder, options, corpus), **counts)

    given = documents_left(corpus, builder.staging_folder, builder.num_given, read, report)
    encode = partial(_encode, tokenizer)
    for (tokens, lengths), num_bytes in _in_order(encode, batches(given)):
        builder.add_documents(tokens, lengths)
        read.num_bytes += num_bytes
        report()
        if builder.is_full:
            break
    progress("tokenise", 1, 1)
    return read


def how_far(
    read: Reading, builder: DatastoreBuilder, options: BuildOptions, corpus: Corpus
) -> tuple[int, int | None]:
    """How far reading has come, and how far it has to go: to a limit, or the end of the corpus."""
    if options.max_tokens is not None:
        return builder.num_tokens, options.max_tokens
    if options.max_documents is not None:
        return builder.num_documents, options.max_documents
    return read.num_bytes, corpus.num_bytes


def _encode(tokenizer: PreTrainedTokenizerBase, batch: list[Document]) -> tuple[Encoded, int]:
    encoded = encode_batch(tokenizer, [document.text for document in batch])
    return encoded, sum(document.num_bytes for document in batch)


def _in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Does the work on two items at a time, and yields the results in the order of the items.

    The tokenizer uses all cores while it encodes a batch, but only one before and after that: a
    second batch fills the gaps.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents into batches of about a megabyte, enough work for every core."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True)
class Clock:
    """The time, and what of it this process has spent on its cores."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Clock:
        """Reads both."""
        return cls(time.perf_counter(), time.process_time())


def peak_memory_bytes() -> int:
    """The largest resident set size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts kilobytes


def _silent(stage: str, done: int, total: int | None, **counts: int) -> None:
    """The progress that nobody watches."""
