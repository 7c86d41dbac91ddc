"""Drafters: each opens a session for a request, which drafts token trees.

`session` defines their interface, `registry` their names; `papers` has those for comparison.
"""

from specds._core import (
    SOURCES,
    AdaptiveTrigrams,
    DraftSession,
    Memory,
    ModelTables,
    Session,
    TokenTree,
    Trigrams,
    draft_batch,
)
from specds._lazy import OF_PAPERS, lazy
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.registry import (
    KINDS,
    DrafterInputs,
    DrafterName,
    make_drafter,
    maker_of,
    require_inputs,
)
from specds.drafters.session import Drafter, Proposal, RequestRules

__all__ = [
    "KINDS",
    "SOURCES",
    "AdaptiveTrigrams",
    "DraftSession",
    "Drafter",
    "DrafterInputs",
    "DrafterName",
    "Effort",
    "FusedConfig",
    "FusedDrafter",
    "Memory",
    "ModelTables",
    "Proposal",
    "RequestRules",
    "Session",
    "TokenTree",
    "Trigrams",
    "draft_batch",
    "make_drafter",
    "maker_of",
    "require_inputs",
]

__getattr__ = lazy(__name__, of_papers=OF_PAPERS)
