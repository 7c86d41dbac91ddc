"""What has a build read of its corpus, and in what batches does it tokenise it?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specds._core import DatastoreBuilder
    from specds.build.options import BuildOptions
    from specds.corpora import Corpus, Document, Skipped

_BATCH_BYTES = 1 << 20


@dataclass
class Reading:
    """What was read of a corpus.

    Attributes:
        num_bytes: The size of it.
        skipped: What the corpus left out, counted by reason.
    """

    num_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def leave_out(self, item: Skipped) -> None:
        """Counts what the corpus leaves out."""
        self.num_bytes += item.num_bytes
        self.skipped[item.reason] += 1


def how_far(
    read: Reading, builder: DatastoreBuilder, options: BuildOptions, corpus: Corpus
) -> tuple[int, int | None]:
    """How far reading has come, and how far it has to go: to a limit, or the end of the corpus."""
    if options.max_tokens is not None:
        return builder.num_tokens, options.max_tokens
    if options.max_documents is not None:
        return builder.num_documents, options.max_documents
    return read.num_bytes, corpus.num_bytes


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
