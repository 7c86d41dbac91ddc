"""Transfer of requests from a request cache to a datastore."""

from __future__ import annotations

import time
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from specds._core import Datastore, Memory
from specds.indexing.local import tokenizer_metadata
from specds.indexing.options import BuildOptions
from specds.indexing.report import Progress
from specds.models.tokenization import Tokenizer


@dataclass(frozen=True)
class MemoryMoveReport:
    """Figures of a transfer from a memory to a datastore.

    Attributes:
        num_added_documents: Texts that were added, without those that the datastore had.
        num_tokens: Tokens of the datastore after the transfer; 0 if there is no datastore.
        num_left: Tokens of all tenants that remain in the memory.
    """

    path: str
    num_texts: int
    num_added_documents: int
    num_added_tokens: int
    num_tokens: int
    num_shards: int
    num_left: int
    seconds: float


def add_from_memory(
    path: str | PathLike[str],
    memory: str | PathLike[str],
    tenant: str = "",
    options: BuildOptions | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    tokenizer_name: str | None = None,
    progress: Progress | None = None,
) -> MemoryMoveReport:
    """Add a tenant's texts in a memory to a datastore, then remove them from the memory.

    Readers and processes that share the memory can run at the same time. After a kill, each text is
    in the memory, in the datastore, or in both; repeat the call.

    Args:
        path: The datastore; it is created if it does not exist.
        memory: Written by `Memory.save`, `FusedDrafter.save` or a server with `sync_interval`.
        tenant: Owner of the texts, which all users of the datastore can draft from afterwards.
        tokenizer: Tokenizer of the tokens, if there is no datastore yet.
        tokenizer_name: Name of the tokenizer in the manifest; by default its own name.

    Raises:
        FormatError: The memory or the datastore is damaged or has another version.
        ValueError: They have different tokenizers, there is neither datastore nor tokenizer, or the
            tenant was deleted from the memory meanwhile. Nothing is added.
        BlockingIOError: Another process is writing the datastore.
    """
    started, options = time.perf_counter(), options or BuildOptions()
    facts = _facts(Path(path), tokenizer, tokenizer_name)
    corpus = [f"memory {Path(memory).name}"]
    datastore, numbers = Memory.move_to(
        memory, tenant, path, **facts, corpus=corpus, progress=progress, **options.for_core()
    )
    num_texts, num_added_documents, num_added_tokens, num_left = numbers
    return MemoryMoveReport(
        path=str(path),
        num_texts=num_texts,
        num_added_documents=num_added_documents,
        num_added_tokens=num_added_tokens,
        num_tokens=0 if datastore is None else datastore.num_tokens,
        num_shards=0 if datastore is None else datastore.num_shards,
        num_left=num_left,
        seconds=time.perf_counter() - started,
    )


def _facts(path: Path, tokenizer: Tokenizer | None, name: str | None) -> dict[str, Any]:
    """Return a datastore's token metadata, or the tokenizer's if there is no datastore yet."""
    if path.exists():
        datastore = Datastore(path)
        names = ("vocab_size", "separator", "tokenizer_name", "tokenizer_fingerprint")
        return {name: getattr(datastore, name) for name in names}
    if tokenizer is None:
        raise ValueError(f"no datastore at {path} yet: name its tokenizer to make it")
    return tokenizer_metadata(tokenizer, name)
