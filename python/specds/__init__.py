"""Speculative decoding from datastores and earlier requests: faster generation, the same output.

Imports follow the data: `specds.corpora` -> `specds.indexing` -> `specds.drafters` ->
`specds.generation` -> `specds.transformers`, which has all that needs torch. This module exports
the names that most programs need.

Importing this package requires only numpy; torch and transformers are imported on first use.
"""

import copyreg
from typing import TYPE_CHECKING, Any, NoReturn

from specds._core import (
    Datastore,
    EngineDrafter,
    FormatError,
    InternalError,
    Memory,
    ModelTables,
    TokenTree,
    __version__,
)
from specds._lazy import OF_PAPERS, lazy
from specds.models import html

if TYPE_CHECKING:
    from specds.corpora import CorpusError
    from specds.drafters import Drafter, FusedConfig, FusedDrafter, Session
    from specds.generation import Chat, GenerationOutput, UnsupportedRequestError, generate
    from specds.generation.runner import UnsupportedModelError
    from specds.generation.stats import GenerationStats
    from specds.generation.warmup import warm_up
    from specds.indexing import (
        BuildOptions,
        BuildReport,
        build_datastore,
        build_from_token_ids,
        default_datastore,
    )
    from specds.models.gguf_model import GgufModel, load_gguf
    from specds.transformers.acceleration import accelerate, undo

__all__ = [
    "BuildOptions",
    "BuildReport",
    "Chat",
    "CorpusError",
    "Datastore",
    "Drafter",
    "EngineDrafter",
    "FormatError",
    "FusedConfig",
    "FusedDrafter",
    "GenerationOutput",
    "GenerationStats",
    "GgufModel",
    "InternalError",
    "Memory",
    "Session",
    "TokenTree",
    "UnsupportedModelError",
    "UnsupportedRequestError",
    "__version__",
    "accelerate",
    "build_datastore",
    "build_from_token_ids",
    "default_datastore",
    "generate",
    "load_gguf",
    "undo",
    "warm_up",
]

_HOMES = (
    *("corpora", "indexing", "drafters", "models.gguf_model", "generation.stats"),
    *("generation", "generation.runner", "generation.warmup", "transformers.acceleration"),
)
__getattr__ = lazy(__name__, *_HOMES, of_papers=OF_PAPERS)


def _refuse_pickle(value: Any) -> NoReturn:
    raise TypeError(
        f"{type(value).__name__} cannot be pickled: make one in each process, and share requests "
        "through a folder (`Memory.share`, or `snapshot=` and `sync_interval=` of EngineDrafter)"
    )


# A datastore is its folder: another process opens it there.
copyreg.pickle(Datastore, lambda datastore: (Datastore, (str(datastore.path),)))
copyreg.pickle(ModelTables, lambda of: (ModelTables, (of.bigram, of.bigram_probs, of.unigram)))
copyreg.pickle(Memory, _refuse_pickle)
copyreg.pickle(EngineDrafter, _refuse_pickle)
# For notebooks.
setattr(Datastore, "_repr_html_", html.datastore_html)  # noqa: B010
setattr(TokenTree, "_repr_html_", html.tree_html)  # noqa: B010


def __dir__() -> list[str]:
    return __all__
