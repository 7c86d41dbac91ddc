"""What does a build report: how far it has come, and in the end what it made at what cost."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


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
        tokenise_s: Seconds for reading and tokenising; on a cluster for indexing too.
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
