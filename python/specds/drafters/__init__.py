"""Drafters: each opens a session for a request, which drafts token trees.

`session` defines their interface, `registry` their names; each other file has one drafter.
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
from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.registry import (
    KINDS,
    DrafterInputs,
    DrafterName,
    make_drafter,
    maker_of,
    require_inputs,
)
from specds.drafters.rest import RestConfig, RestDrafter
from specds.drafters.session import Drafter, Proposal, RequestRules

__all__ = [
    "KINDS",
    "SOURCES",
    "AdaptiveTrigrams",
    "AdedConfig",
    "AdedDrafter",
    "DraftSession",
    "Drafter",
    "DrafterInputs",
    "DrafterName",
    "Effort",
    "FusedConfig",
    "FusedDrafter",
    "Memory",
    "ModelTables",
    "NGrammysConfig",
    "NGrammysDrafter",
    "PromptLookupDrafter",
    "Proposal",
    "RequestRules",
    "RestConfig",
    "RestDrafter",
    "Session",
    "TokenTree",
    "Trigrams",
    "draft_batch",
    "make_drafter",
    "maker_of",
    "require_inputs",
]
