"""Tokens of a datastore as a file that baselines index."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from specds import Datastore
from specds._core import DatastoreBuilder


@dataclass(frozen=True)
class CorpusFile:
    """File of little-endian tokens, with a separator after each document."""

    path: Path
    vocab_size: int
    separator: int

    @property
    def token_bytes(self) -> int:
        """Return the width of a token in the file."""
        return 2 if max(self.vocab_size - 1, self.separator) < 1 << 16 else 4

    def request(self, folder: Path) -> dict[str, Any]:
        """Return the fields of a request to index this text into a folder."""
        return {
            "folder": str(folder),
            "tokens": str(self.path),
            "token_bytes": self.token_bytes,
            "vocab_size": self.vocab_size,
            "separator": self.separator,
        }


@cache
def corpus_of(datastore: Datastore) -> CorpusFile:
    """Write the text of a datastore to a temporary folder, which also takes its indexes."""
    folder = Path(tempfile.mkdtemp(dir=_scratch().name))
    corpus = CorpusFile(folder / "tokens.bin", datastore.vocab_size, datastore.separator)
    with corpus.path.open("wb") as file:
        for document in datastore:
            ended = np.append(document.token_ids, corpus.separator)
            ended.astype(f"<u{corpus.token_bytes}").tofile(file)
    return corpus


def sampled(path: Path, num_tokens: int, to: Path) -> Path:
    """Build a datastore of documents at an even stride, of about `num_tokens` tokens."""
    whole = Datastore(path)
    stride = max(whole.num_tokens // num_tokens, 1)
    same = ("vocab_size", "separator", "tokenizer_name", "tokenizer_fingerprint")
    options = {name: getattr(whole, name) for name in same}
    with DatastoreBuilder(to, **options) as builder:
        for number, document in enumerate(whole):
            if number % stride == 0:
                builder.add_documents(document.token_ids, [len(document.token_ids)])
        builder.finish()
    return to


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="specds-baselines-")
