"""How do the documents of a corpus come to a builder of this process: read, tokenised, in order?"""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from specds._core import DatastoreBuilder
from specds.build.reading import Reading, batches, how_far
from specds.build.resume import documents_left
from specds.tokenization import encode_batch, fingerprint, vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    import numpy as np
    from transformers import PreTrainedTokenizerBase

    from specds.build.options import BuildOptions
    from specds.build.report import Progress
    from specds.corpora import Corpus, Document

T = TypeVar("T")
R = TypeVar("R")


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
