"""Progress and final report of a build."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Protocol

from specds._core import Datastore, DatastoreBuilder
from specds.corpora import Document, Skipped
from specds.corpora.document import COPY, NOT_SAMPLED


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int | None, **counts: int) -> object:
        """Stage `tokenize` counts bytes of text, others tokens or shards; None is unknown."""


_COUNTERS = ("skipped", "unwritten_fields", "normalized")


@dataclass
class IngestStats:
    """Statistics of reading a corpus.

    Attributes:
        num_bytes: Size of all documents, with those that were left out.
        left_out_bytes: Size of the items that the corpus skipped, apart from sampling.
        skipped: Number of items that the corpus left out, by reason.
        num_duplicates: Number of exact duplicates that were left out.
        unwritten_fields: Number of documents by field that their rows had and their texts lack.
        normalized: Number of documents by what was normalized: ``CRLF line ends``.
    """

    num_read: int = 0
    num_bytes: int = 0
    left_out_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unwritten_fields: Counter[str] = field(default_factory=Counter)
    normalized: Counter[str] = field(default_factory=Counter)
    num_documents: int = 0
    num_tokens: int = 0
    num_duplicates: int = 0
    is_full: bool = False

    def __post_init__(self) -> None:
        self.skipped = Counter(self.skipped)
        self.unwritten_fields = Counter(self.unwritten_fields)
        self.normalized = Counter(self.normalized)

    def count(self, item: Document | Skipped) -> None:
        self.num_bytes += item.num_bytes
        if isinstance(item, Document):
            self.num_read += 1
            self.unwritten_fields.update(item.unwritten)
            self.normalized.update(item.changes)
        else:
            self.skipped[item.reason] += 1
            self.left_out_bytes += item.num_bytes * (item.reason not in (NOT_SAMPLED, COPY))

    def nothing(self) -> str:
        """Return the error message for a corpus without tokens."""
        if self.is_full:
            return "the first document has more tokens than the limit: raise --max-tokens"
        skipped = [f"{count:,} left out: {reason}" for reason, count in self.skipped.items()]
        found = "; ".join([f"{self.num_read:,} documents read, none with text", *skipped])
        return f"the corpus is empty: {found}"

    def added_by(self, builder: DatastoreBuilder) -> None:
        """Set the counts of a builder."""
        self.num_documents, self.num_tokens = builder.num_documents, builder.num_tokens
        self.num_duplicates, self.is_full = builder.num_duplicates, builder.is_full

    def add(self, other: IngestStats) -> None:
        for name, value in vars(other).items():
            setattr(self, name, value if name == "is_full" else getattr(self, name) + value)


@dataclass(frozen=True)
class BuildReport:
    """Results and cost of a build.

    Attributes:
        num_tokens: Tokens of the datastore, separators included.
        num_added_documents: Documents that this build added; fewer than all if it appended.
        num_resumed: Documents that an earlier, killed build had processed.
        text_bytes: Size of the corpus, with the items that were left out.
        share_read: Fraction of these bytes that became documents.
        tokenize_s: Seconds for reading and tokenizing; on a cluster also for indexing.
        index_s: Seconds for sorting and writing after tokenization.
        unwritten_fields: Number of documents by field of a conversation that the row had and the
            text lacks, since the chat template does not write it.
        normalized: Number of documents by what was normalized in their texts: ``UTF-16``, ``byte
            order mark``, ``CRLF line ends``.
    """

    path: str
    num_documents: int
    num_tokens: int
    num_shards: int
    num_bytes: int
    num_added_documents: int
    num_added_tokens: int
    num_duplicates: int
    num_resumed: int
    text_bytes: int
    share_read: float
    tokenize_s: float
    index_s: float
    skipped: Counter[str] = field(default_factory=Counter)
    unwritten_fields: Counter[str] = field(default_factory=Counter)
    normalized: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        path: str | PathLike[str],
        datastore: Datastore,
        read: IngestStats,
        num_resumed: int,
        started: float,
        tokenized: float,
    ) -> BuildReport:
        """Return the report of a build that ends now, from times of `time.perf_counter`."""
        return cls(
            path=str(path),
            num_documents=datastore.num_documents,
            num_tokens=datastore.num_tokens,
            num_shards=datastore.num_shards,
            num_bytes=datastore.num_bytes,
            num_added_documents=read.num_documents,
            num_added_tokens=read.num_tokens,
            num_duplicates=read.num_duplicates,
            num_resumed=num_resumed,
            text_bytes=read.num_bytes,
            share_read=1 - read.left_out_bytes / max(read.num_bytes, 1),
            tokenize_s=tokenized - started,
            index_s=time.perf_counter() - tokenized,
            skipped=read.skipped,
            unwritten_fields=read.unwritten_fields,
            normalized=read.normalized,
        )

    @property
    def bytes_per_token(self) -> float:
        """Return the bytes on disk per token of the datastore."""
        return self.num_bytes / self.num_tokens

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens added per second, tokenization included."""
        return self.num_added_tokens / (self.tokenize_s + self.index_s)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the derived figures as built-in types."""
        derived = {"bytes_per_token": self.bytes_per_token, "tokens_per_s": self.tokens_per_s}
        # `asdict` would make another counter of the pairs in these.
        counts = {name: dict(getattr(self, name)) for name in _COUNTERS}
        return asdict(self) | derived | counts
