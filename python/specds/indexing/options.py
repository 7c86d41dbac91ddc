"""Options of a build, from the command line to the core."""

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from specds._core import DEFAULTS


@dataclass(frozen=True)
class ShardOptions:
    """Options of making shards from tokens.

    Attributes:
        max_memory: Maximum bytes for sorting; by default half of the machine's memory.
        max_shard_tokens: Maximum tokens of a shard; by default as many as memory allows.
    """

    max_memory: int | None = None
    max_shard_tokens: int | None = None

    def sorting_memory(self) -> int:
        """Return the maximum bytes for sorting: 4 GiB if the machine's memory is unknown."""
        if self.max_memory is not None:
            return self.max_memory
        if not hasattr(os, "sysconf"):
            return 4 << 30
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

    def for_core(self) -> dict[str, Any]:
        values = asdict(self) | {"max_memory": self.sorting_memory()}
        return {name: value for name, value in values.items() if name in DEFAULTS["build"]}


@dataclass(frozen=True)
class DocumentOptions(ShardOptions):
    """Options of selecting documents, and of where the build runs.

    Attributes:
        drop_duplicates: Drop and count exact duplicates of earlier documents.
        max_documents: Index at most this many documents.
        max_tokens: Index at most this many tokens, separators included.
        engine: ``local``, or ``ray`` for a cluster, whose workers read the corpus twice to find
            the duplicates of each other.
        ray_address: Address of a running cluster; by default one that Ray finds or starts.
    """

    drop_duplicates: bool = True
    max_documents: int | None = None
    max_tokens: int | None = None
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_documents", "max_tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")


@dataclass(frozen=True)
class BuildOptions(DocumentOptions):
    """Options of a build; the command line has the options of these three records.

    Attributes:
        overwrite: Replace an existing datastore after the new one is complete.
        append: Add to the datastore at the path, in new shards.
        commands: Command lines of this build, for users of a shared datastore.
    """

    overwrite: bool = False
    append: bool = False
    commands: tuple[str, ...] = ()
