"""Speculative decoding from datastores: faster language models, the same text, nothing trained.

Tokens go one way: corpus -> datastore -> lookup -> draft -> token tree -> verify -> accept.

Importing this package needs numpy alone; torch and transformers are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specds._core import (
    SOURCES,
    AdaptiveTrigrams,
    Datastore,
    DatastoreBuilder,
    DraftSession,
    FormatError,
    Match,
    Memory,
    ModelTables,
    StoredDocument,
    TokenTree,
    Trigrams,
    __version__,
    build_shard,
    compact,
    document_hashes,
    draft_batch,
    fit_weights,
    merge,
    refit,
)
from specds.drafters import (
    AdedConfig,
    AdedDrafter,
    Drafter,
    FusedConfig,
    FusedDrafter,
    NGrammysConfig,
    NGrammysDrafter,
    PromptLookupDrafter,
    RestConfig,
    RestDrafter,
    Session,
)

if TYPE_CHECKING:
    from specds.build import BuildOptions, BuildReport, build_datastore
    from specds.build.estimate import BuildEstimate, estimate_build
    from specds.corpora import (
        Corpus,
        CorpusError,
        CorpusOptions,
        Document,
        open_corpus,
        render_with,
    )
    from specds.drafters.model_tables import load_tables
    from specds.generation import GenerationOutput, custom_generate, generate
    from specds.hierarchy import HierarchyConfig, HierarchyDrafter
    from specds.stats import GenerationStats
    from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "SOURCES",
    "AdaptiveTrigrams",
    "AdedConfig",
    "AdedDrafter",
    "BuildEstimate",
    "BuildOptions",
    "BuildReport",
    "Corpus",
    "CorpusError",
    "CorpusOptions",
    "Datastore",
    "DatastoreBuilder",
    "Document",
    "DraftSession",
    "Drafter",
    "FormatError",
    "FusedConfig",
    "FusedDrafter",
    "GenerationOutput",
    "GenerationStats",
    "HierarchyConfig",
    "HierarchyDrafter",
    "Match",
    "Memory",
    "ModelTables",
    "NGrammysConfig",
    "NGrammysDrafter",
    "PromptLookupDrafter",
    "RestConfig",
    "RestDrafter",
    "Session",
    "StoredDocument",
    "Support",
    "TokenTree",
    "Trigrams",
    "UnsupportedModelError",
    "__version__",
    "build_datastore",
    "build_shard",
    "check_model",
    "compact",
    "custom_generate",
    "document_hashes",
    "draft_batch",
    "estimate_build",
    "fit_weights",
    "generate",
    "load_tables",
    "merge",
    "open_corpus",
    "refit",
    "render_with",
]

_LAZY = {
    "BuildEstimate": "specds.build.estimate",
    "BuildOptions": "specds.build",
    "BuildReport": "specds.build",
    "Corpus": "specds.corpora",
    "CorpusError": "specds.corpora",
    "CorpusOptions": "specds.corpora",
    "Document": "specds.corpora",
    "GenerationOutput": "specds.generation",
    "GenerationStats": "specds.stats",
    "HierarchyConfig": "specds.hierarchy",
    "HierarchyDrafter": "specds.hierarchy",
    "Support": "specds.verify.support",
    "UnsupportedModelError": "specds.verify.support",
    "build_datastore": "specds.build",
    "check_model": "specds.verify.support",
    "custom_generate": "specds.generation",
    "estimate_build": "specds.build.estimate",
    "generate": "specds.generation",
    "load_tables": "specds.drafters.model_tables",
    "open_corpus": "specds.corpora",
    "render_with": "specds.corpora",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'specds' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
