"""Building of datastores: documents -> tokens -> suffix arrays on disk.

Read in this order: `options`, `report` (what a build has read and made), `local`, `ray` (the same
on a cluster), `build`, `from_memory`, `default` (in the background).
Imports `specds.corpora` and what lies below it.
"""

from typing import TYPE_CHECKING

from specds._core import DatastoreBuilder, compact, merge
from specds._lazy import lazy

if TYPE_CHECKING:
    from specds.indexing.build import build_datastore, build_from_token_ids
    from specds.indexing.default import default_datastore
    from specds.indexing.from_memory import MemoryMoveReport, add_from_memory
    from specds.indexing.options import BuildOptions
    from specds.indexing.report import BuildReport

__all__ = [
    "BuildOptions",
    "BuildReport",
    "DatastoreBuilder",
    "MemoryMoveReport",
    "add_from_memory",
    "build_datastore",
    "build_from_token_ids",
    "compact",
    "default_datastore",
    "merge",
]

__getattr__ = lazy(
    __name__,
    *("indexing.options", "indexing.report", "indexing.build"),
    *("indexing.from_memory", "indexing.default"),
)
