"""The drafter of a server: its datastore, and its request cache in a store."""

from __future__ import annotations

from os import PathLike
from typing import Any

from specds._core import Datastore
from specds.drafters.fused import FusedDrafter
from specds.generation.default_source import with_datastore
from specds.indexing.default import DefaultDatastore

_SAVED_EVERY_S = 60.0


class Drafting:
    """Drafts for all requests of a server.

    Args:
        datastore: A datastore of the tokenizer; None for the default one, once that is built.
        memory: The folder or URL of the request cache, which is exchanged with it each minute.
        takes_default: Whether to use the default datastore.
    """

    def __init__(
        self,
        tokenizer: Any,
        datastore: Datastore | None = None,
        memory: str | PathLike[str] | None = None,
        *,
        takes_default: bool = False,
    ) -> None:
        self._drafter = FusedDrafter.resume(None, datastore, tokenizer=tokenizer)
        self._memory, self._path = self._drafter.memory, memory
        if memory is not None and self._memory is not None:
            self._memory.share(memory, every=_SAVED_EVERY_S)
        self._default = DefaultDatastore(None, tokenizer) if takes_default else None
        if self._default is not None:
            self._default.get()

    @property
    def drafter(self) -> FusedDrafter:
        if self._default is not None and self._drafter.datastore is None:
            self._drafter = with_datastore(self._drafter, self._default.get())
        return self._drafter

    def deleted_at(self, tenant: str) -> float:
        """Return when a tenant was deleted last, in seconds since 1970; 0 if it never was."""
        return 0.0 if self._memory is None else self._memory.deleted_at(tenant)

    def save(self) -> None:
        """Write the request cache to its store."""
        if self._path is not None and self._memory is not None:
            self._memory.save(self._path)
