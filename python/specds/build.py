"""Builds a datastore: documents of a corpus -> tokens -> suffix arrays on disk."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from specds._core import DatastoreBuilder
from specds.corpora import Skipped
from specds.tokenization import encode_batch, fingerprint, vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    from transformers import PreTrainedTokenizerBase

    from specds.corpora import Corpus, Document

_BATCH_BYTES = 1 << 20


Progress: TypeAlias = "Callable[[str, int, int], object]"
"""Told a stage, how far it has come and how far it has to go: bytes of text, then tokens."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did and what it cost.

    Attributes:
        num_bytes: Size of the datastore on disk.
        text_bytes: Size of the documents as they were read.
        tokenise_s: Seconds for reading and tokenising.
        index_s: Seconds for sorting and writing.
        peak_memory_bytes: The largest resident set of this process so far.
        skipped: What the corpus left out, counted by reason.
    """

    path: str
    num_documents: int
    num_tokens: int
    num_bytes: int
    text_bytes: int
    tokenise_s: float
    index_s: float
    peak_memory_bytes: int
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def bytes_per_token(self) -> float:
        """Bytes on disk for each token of the corpus."""
        return self.num_bytes / self.num_tokens

    @property
    def tokens_per_s(self) -> float:
        """Tokens indexed a second, tokenising included."""
        return self.num_tokens / (self.tokenise_s + self.index_s)

    def to_dict(self) -> dict[str, Any]:
        """Everything above, and the derived figures, as plain values."""
        derived = {"bytes_per_token": self.bytes_per_token, "tokens_per_s": self.tokens_per_s}
        # `asdict` would make another counter of the pairs in this one.
        return asdict(self) | derived | {"skipped": dict(self.skipped)}


def build_datastore(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    out: str | PathLike[str],
    *,
    tokenizer_name: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    """Builds the datastore of a corpus at `out`; whatever goes wrong, `out` is left as it was.

    Args:
        corpus: What to index, from `specds.corpora.open_corpus`.
        tokenizer: A transformers tokenizer; a fast one uses all cores.
        out: The folder to make.
        tokenizer_name: What to call the tokenizer in the manifest; its own name by default.
        overwrite: Replace what is at `out`, once the new datastore is complete.
        progress: Called with the stage and how far it has come.

    Raises:
        FileExistsError: `out` exists and `overwrite` is false.
        CorpusError: A document cannot be read.
        ValueError: The corpus holds no tokens.
        OSError: The disk is full, or `out` cannot be written.
    """
    size = vocab_size(tokenizer)
    eos = tokenizer.eos_token_id
    builder = DatastoreBuilder(
        out,
        vocab_size=size,
        separator=size if eos is None else eos,
        tokenizer_name=tokenizer_name or tokenizer.name_or_path,
        tokenizer_fingerprint=fingerprint(tokenizer),
        corpus=[corpus.name],
        overwrite=overwrite,
    )
    started = time.perf_counter()
    with builder:
        text_bytes = 0
        skipped: Counter[str] = Counter()
        for batch in _batches(_counted(corpus, skipped)):
            builder.add_documents(*encode_batch(tokenizer, [d.text for d in batch]))
            text_bytes += sum(d.num_bytes for d in batch)
            if progress:
                progress("tokenise", text_bytes, corpus.num_bytes or text_bytes)
        tokenised = time.perf_counter()
        datastore = builder.finish(progress)
    return BuildReport(
        path=str(out),
        num_documents=datastore.num_documents,
        num_tokens=datastore.num_tokens,
        num_bytes=datastore.num_bytes,
        text_bytes=text_bytes,
        tokenise_s=tokenised - started,
        index_s=time.perf_counter() - tokenised,
        peak_memory_bytes=peak_memory_bytes(),
        skipped=skipped,
    )


def peak_memory_bytes() -> int:
    """The largest resident set size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts kilobytes


def _counted(corpus: Corpus, skipped: Counter[str]) -> Iterator[Document]:
    """Yields the documents, and counts what was left out by reason."""
    for item in corpus:
        if isinstance(item, Skipped):
            skipped[item.reason] += 1
        else:
            yield item


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents into batches of about a megabyte, enough work for every core."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.num_bytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
