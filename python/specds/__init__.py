"""Speculative decoding from datastores: faster language models, the same text, nothing trained.

Tokens go one way, and imports likewise: `specds.corpora` -> `specds.build` -> `specds.drafters` ->
`specds.verify` and `specds.accept` -> `specds.budget` -> `specds.generation`. Here is what most
programs need of them; the rest is in these folders.

Importing this package needs numpy alone; torch and transformers are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specds._core import Datastore, FormatError, __version__
from specds.drafters import (
    AdedDrafter,
    FusedConfig,
    FusedDrafter,
    NGrammysDrafter,
    PromptLookupDrafter,
    RestDrafter,
)

if TYPE_CHECKING:
    from specds.build import BuildOptions, build_datastore
    from specds.corpora import CorpusOptions, open_corpus
    from specds.generation import custom_generate, generate
    from specds.hierarchy import HierarchyDrafter
    from specds.verify import check_model

__all__ = [
    "AdedDrafter",
    "BuildOptions",
    "CorpusOptions",
    "Datastore",
    "FormatError",
    "FusedConfig",
    "FusedDrafter",
    "HierarchyDrafter",
    "NGrammysDrafter",
    "PromptLookupDrafter",
    "RestDrafter",
    "__version__",
    "build_datastore",
    "check_model",
    "custom_generate",
    "generate",
    "open_corpus",
]

_LAZY = {
    "BuildOptions": "specds.build",
    "CorpusOptions": "specds.corpora",
    "HierarchyDrafter": "specds.hierarchy",
    "build_datastore": "specds.build",
    "check_model": "specds.verify",
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
