"""Transfer of documents to a builder in this process: read, tokenized, in order.

Checkpoints record the ends of parts: a resumed build does not read these parts again.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from specds._core import DatastoreBuilder
from specds.corpora import Corpus, CorpusError, Document
from specds.indexing.options import BuildOptions
from specds.indexing.report import IngestStats, Progress
from specds.models.tokenization import Tokenizer, encode_batch, fingerprint, vocab_size


def documents_left(
    corpus: Corpus,
    folder: str | PathLike[str],
    num_given: int,
    read: IngestStats,
    report: Callable[[], object],
) -> Iterator[Document]:
    """Yield the documents of a corpus after the first `num_given`, and record the ends of parts.

    Parts that end before these documents are not read again; `read` counts them as well. The ends
    of parts are recorded in `folder`. `report` is called regularly while documents are skipped.
    """
    _check_same(corpus, Path(folder, "states.json"), num_given)
    path = Path(folder, "parts.jsonl")
    ended = [noted for noted in _notes(path) if noted.num_read <= num_given]
    if ended:
        read.add(ended[-1])
    with path.open("wb", buffering=0) as notes:
        with _with_filename(path):
            notes.write("".join(map(_line, ended)).encode())
        for part in corpus.parts[len(ended) :]:
            for item in part:
                read.count(item)
                if not isinstance(item, Document):
                    continue
                if read.num_read > num_given:
                    yield item
                elif read.num_read % 1000 == 0:
                    report()
            with _with_filename(path):
                notes.write(_line(read).encode())


def _check_same(corpus: Corpus, path: Path, num_given: int) -> None:
    states = [part.state for part in corpus.parts]
    if num_given:
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            noted = None
        if noted != states:
            raise CorpusError(
                f"{corpus.name} has changed since its build was stopped: put it back as it was, or "
                f"remove {path.parent} to begin again"
            )
    with _with_filename(path):
        path.write_text(json.dumps(states), encoding="utf-8")


@contextmanager
def _with_filename(path: Path) -> Iterator[None]:
    """Name the file that cannot be written: the error of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _line(read: IngestStats) -> str:
    return json.dumps(vars(read)) + "\n"


def _notes(path: Path) -> Iterator[IngestStats]:
    """Yield the checkpoints of an earlier build; a kill may have truncated the last line."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield IngestStats(**json.loads(line))
        except (TypeError, ValueError):
            return


_BATCH_BYTES = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


def open_builder(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: str | PathLike[str],
    options: BuildOptions,
    tokenizer_name: str | None = None,
) -> DatastoreBuilder:
    """Start the build of a corpus at `out`, or resume a killed one."""
    return DatastoreBuilder(
        out,
        **tokenizer_metadata(tokenizer, tokenizer_name),
        corpus=[corpus.name],
        plan=json.dumps({"corpus": corpus.name}),
        **options.for_core(),
    )


def tokenizer_metadata(tokenizer: Tokenizer, name: str | None = None) -> dict[str, Any]:
    """Return a tokenizer's metadata as keywords of the builder."""
    size = vocab_size(tokenizer)
    eos = tokenizer.eos_token_id
    return {
        "vocab_size": size,
        "separator": size if eos is None else eos,
        "tokenizer_name": name or tokenizer.name_or_path,
        "tokenizer_fingerprint": fingerprint(tokenizer),
    }


def tokenize_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    builder: DatastoreBuilder,
    options: BuildOptions,
    progress: Progress,
) -> IngestStats:
    """Pass the remaining documents to the builder, and return the statistics of reading."""
    read = IngestStats()
    _check_tokenizer(corpus, tokenizer)

    def report() -> None:
        done, total = read.num_bytes, corpus.num_bytes
        if options.max_tokens is not None:
            done, total = builder.num_tokens, options.max_tokens
        elif options.max_documents is not None:
            done, total = builder.num_documents, options.max_documents
        counts = {"documents": builder.num_documents, "tokens": builder.num_tokens}
        progress("tokenize", done, total, **counts)

    def encode(batch: list[Document]) -> tuple[np.ndarray, np.ndarray, list[str]]:
        tokens, lengths = _encode(tokenizer, batch)
        # Names of files may have bytes that are not UTF-8.
        names = [document.name.encode(errors="replace").decode() for document in batch]
        return tokens, lengths, names

    given = documents_left(corpus, builder.staging_folder, builder.num_given, read, report)
    for tokens, lengths, sources in _in_order(encode, _batches(given)):
        builder.add_documents(tokens, lengths, sources)
        report()
        if builder.is_full:
            break
    progress("tokenize", 1, 1)
    read.added_by(builder)
    return read


def _check_tokenizer(corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Reject tokens of another tokenizer."""
    for part in corpus.parts:
        theirs = getattr(part, "tokenizer", None)
        if theirs is not None and theirs != fingerprint(tokenizer):
            raise CorpusError(
                f"{corpus.name} has tokens of another tokenizer: its fingerprint is `{theirs}`, "
                f"that of --tokenizer `{fingerprint(tokenizer)}`"
            )


def _encode(tokenizer: Tokenizer, batch: list[Document]) -> tuple[np.ndarray, np.ndarray]:
    """Tokenize the documents that have no tokens."""
    texts = [document.text for document in batch if document.token_ids is None]
    flat, lengths = encode_batch(tokenizer, texts)
    if len(texts) == len(batch):
        return flat, lengths
    encoded = iter(np.split(flat, np.cumsum(lengths)[:-1]))
    rows = [next(encoded) if row is None else row for row in (each.token_ids for each in batch)]
    return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents into batches of about a megabyte, enough work for every core."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.num_bytes if document.token_ids is not None else len(document.text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Work on two items at a time, and yield the results in the order of the items.

    The tokenizer uses all cores only while it encodes: a second batch fills the gaps.
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
