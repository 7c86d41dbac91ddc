"""Speculative decoding from datastores: faster language models, the same text, nothing trained.

Tokens go one way: corpus -> datastore -> lookup -> draft -> token tree -> verify -> accept.

Importing this package needs numpy alone; torch and transformers are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specds._core import (
    Datastore,
    DatastoreBuilder,
    FormatError,
    Match,
    StoredDocument,
    TokenTree,
    __version__,
    draft_batch,
)
from specds.drafter import Drafter, FusedDrafter, RestConfig, RestDrafter, Session

if TYPE_CHECKING:
    from specds.build import BuildReport, build_datastore
    from specds.corpora import Corpus, CorpusError, Document, open_corpus
    from specds.generation import GenerationOutput, custom_generate, generate
    from specds.stats import GenerationStats
    from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "BuildReport",
    "Corpus",
    "CorpusError",
    "Datastore",
    "DatastoreBuilder",
    "Document",
    "Drafter",
    "FormatError",
    "FusedDrafter",
    "GenerationOutput",
    "GenerationStats",
    "Match",
    "RestConfig",
    "RestDrafter",
    "Session",
    "StoredDocument",
    "Support",
    "TokenTree",
    "UnsupportedModelError",
    "__version__",
    "build_datastore",
    "check_model",
    "custom_generate",
    "draft_batch",
    "generate",
    "open_corpus",
]

_LAZY = {
    "BuildReport": "specds.build",
    "Corpus": "specds.corpora",
    "CorpusError": "specds.corpora",
    "Document": "specds.corpora",
    "GenerationOutput": "specds.generation",
    "GenerationStats": "specds.stats",
    "Support": "specds.verify.support",
    "UnsupportedModelError": "specds.verify.support",
    "build_datastore": "specds.build",
    "check_model": "specds.verify.support",
    "custom_generate": "specds.generation",
    "generate": "specds.generation",
    "open_corpus": "specds.corpora",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'specds' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
