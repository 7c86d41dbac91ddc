"""How is a datastore built: the record of options that the build functions take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from specds._core import DEFAULT_PRIOR_TOKENS


@dataclass(frozen=True)
class BuildOptions:
    """How a datastore is built.

    Attributes:
        overwrite: Replace what is at the path, once the new datastore is complete.
        append: Add to the datastore at the path, in shards of its own.
        drop_duplicates: Leave out documents that came before, and count them.
        max_documents: Index at most so many documents.
        max_tokens: Index at most so many tokens, separators included.
        max_memory: Bytes that sorting may take; half of the machine's memory by default.
        max_shard_tokens: Cut shards smaller than memory asks for.
        prior_tokens: Fit the prior of drafters to at most so many tokens of the datastore; 0 is
            none.
        engine: ``local``, or ``ray`` for a cluster: there a document that comes again in another
            worker's parts is kept.
        ray_address: Of a running cluster; by default the one that Ray finds, or one it starts.
    """

    overwrite: bool = False
    append: bool = False
    drop_duplicates: bool = True
    max_documents: int | None = None
    max_tokens: int | None = None
    max_memory: int | None = None
    max_shard_tokens: int | None = None
    prior_tokens: int = DEFAULT_PRIOR_TOKENS
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None

    def sorting_memory(self) -> int:
        """Bytes that sorting may take."""
        if self.max_memory is not None:
            return self.max_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
