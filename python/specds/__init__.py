"""Speculative decoding from datastores: faster language models, the same text, nothing trained.

Tokens go one way, and imports likewise: `specds.corpora` -> `specds.build` -> `specds.drafters` ->
`specds.verify` and `specds.accept` -> `specds.budget` -> `specds.generation`. Here is what most
programs need of them; the rest is in these folders.

Importing this package needs numpy alone; torch and transformers are imported on first use.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING

from specds._core import Datastore, EngineDrafter, FormatError, __version__
from specds._lazy import lazy

if TYPE_CHECKING:
    from specds.build import BuildOptions, build_datastore, build_from_token_ids
    from specds.corpora import CorpusOptions, open_corpus
    from specds.drafters import (
        AdedDrafter,
        FusedConfig,
        FusedDrafter,
        NGrammysDrafter,
        PromptLookupDrafter,
        RestDrafter,
    )
    from specds.generation import Chat, accelerate, generate
    from specds.generation.warming import warm_up
    from specds.hierarchy import HierarchyDrafter
    from specds.verify import check_model, release

__all__ = [
    "AdedDrafter",
    "BuildOptions",
    "Chat",
    "CorpusOptions",
    "Datastore",
    "EngineDrafter",
    "FormatError",
    "FusedConfig",
    "FusedDrafter",
    "HierarchyDrafter",
    "NGrammysDrafter",
    "PromptLookupDrafter",
    "RestDrafter",
    "__version__",
    "accelerate",
    "build_datastore",
    "build_from_token_ids",
    "check_model",
    "generate",
    "open_corpus",
    "release",
    "warm_up",
]

_HOMES = ("corpora", "build", "drafters", "verify", "hierarchy", "generation", "generation.warming")
__getattr__ = lazy(__name__, *_HOMES)


def _open(path: str) -> Datastore:
    return Datastore.open(path)


# A datastore is its folder: another process opens it there.
copyreg.pickle(Datastore, lambda datastore: (_open, (str(datastore.path),)))


def __dir__() -> list[str]:
    return __all__
