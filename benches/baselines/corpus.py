"""Tokens of a datastore as a file that baselines index."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from specds import Datastore
from specds._core import DatastoreBuilder


@cache
def corpus_of(datastore: Datastore) -> dict[str, Any]:
    """Write the text of a datastore to a temporary folder; return the fields of a request for it.

    The file has little-endian tokens of 32 bits, with a separator after each document.
    """
    path = Path(tempfile.mkdtemp(dir=_scratch().name)) / "tokens.bin"
    with path.open("wb") as file:
        for document in datastore:
            np.append(document.token_ids, datastore.separator).astype("<u4").tofile(file)
    facts = {name: getattr(datastore, name) for name in ("vocab_size", "separator")}
    return {"tokens": str(path), **facts}


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
