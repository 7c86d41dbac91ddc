"""How does a corpus become a datastore: documents -> tokens -> suffix arrays on disk.

Read in this order: `options`, `reading` and `report` (what a build takes, has read and made),
`resume` (a killed build goes on), `local`, `ray` (the same on a cluster), `build`, `estimate`.
Imports `specds.corpora` and what lies below it.
"""

from specds._core import DatastoreBuilder, compact, merge
from specds.build.build import build_datastore
from specds.build.estimate import BuildEstimate, estimate_build
from specds.build.local import open_builder
from specds.build.options import BuildOptions
from specds.build.report import BuildReport, Progress

__all__ = [
    "BuildEstimate",
    "BuildOptions",
    "BuildReport",
    "DatastoreBuilder",
    "Progress",
    "build_datastore",
    "compact",
    "estimate_build",
    "merge",
    "open_builder",
]
