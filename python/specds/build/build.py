"""Builds a datastore: documents of a corpus -> tokens -> suffix arrays on disk."""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from specds._core import DatastoreBuilder
from specds.build.options import BuildOptions
from specds.build.reading import Reading, batches, how_far
from specds.build.report import BuildReport, Clock, peak_memory_bytes
from specds.build.resume import documents_left
from specds.tokenization import encode_batch, fingerprint, vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    import numpy as np
    from transformers import PreTrainedTokenizerBase

    from specds.build.report import Progress
    from specds.corpora import Corpus, Document

T = TypeVar("T")
R = TypeVar("R")


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
    if options.engine == "ray":
        from specds.build.ray import build_on_ray

        return build_on_ray(corpus, tokenizer, out, options, tokenizer_name, progress)
    with open_builder(corpus, tokenizer, out, options, tokenizer_name) as builder:
        num_taken_up, before = builder.num_given, Clock.now()
        read = tokenise(corpus, tokenizer, builder, options, progress)
        tokenised = Clock.now()
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
        prior_tokens=options.prior_tokens,
        drop_duplicates=options.drop_duplicates,
        overwrite=options.overwrite,
        append=options.append,
        plan=json.dumps({"corpus": corpus.name}),
        **{name: limit for name, limit in limits.items() if limit is not None},
    )


Encoded: TypeAlias = "tuple[np.ndarray, np.ndarray]"


def tokenise(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    builder: DatastoreBuilder,
    options: BuildOptions,
    progress: Progress,
) -> Reading:
    """Gives the builder all documents that it has not been given before; tells what was read."""
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


def _silent(stage: str, done: int, total: int | None, **counts: int) -> None:
    """The progress that nobody watches."""
