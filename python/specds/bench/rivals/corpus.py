"""The tokens of a datastore as the plain file that rivals index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from specds.bench.rivals.answers import random_patterns, scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from specds._core import Datastore

_PATTERNS = 24


def documents(datastore: Datastore, position: int = 0) -> Iterator[NDArray[np.int64]]:
    """The tokens of each document of a datastore, from the one at `position` on."""
    while position < datastore.num_tokens:
        document = datastore.document(position)
        yield document.token_ids
        position = document.start + len(document.token_ids) + 1


@dataclass(frozen=True)
class RivalCorpus:
    """Raw little-endian tokens, a separator after each document.

    Attributes:
        path: The file.
        vocab_size: Token ids are below this.
        separator: The token after each document.
    """

    path: Path
    vocab_size: int
    separator: int

    @classmethod
    def of(cls, datastore: Datastore, path: Path) -> RivalCorpus:
        """Writes the text of a datastore to `path`."""
        corpus = cls(path, datastore.vocab_size, datastore.separator)
        with path.open("wb") as file:
            for token_ids in documents(datastore):
                ended = np.append(token_ids, corpus.separator)
                ended.astype(f"<u{corpus.token_bytes}").tofile(file)
        return corpus

    @property
    def token_bytes(self) -> int:
        """The width of a token in the file."""
        return 2 if max(self.vocab_size - 1, self.separator) < 1 << 16 else 4

    @cached_property
    def counts(self) -> tuple[list[list[int]], list[int]]:
        """Some patterns, and how often a scan finds each of them."""
        text = np.memmap(self.path, dtype=f"<u{self.token_bytes}", mode="r")
        patterns = random_patterns(text, self.vocab_size, self.separator, _PATTERNS)
        return patterns, scan(text, patterns)
