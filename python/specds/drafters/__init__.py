"""Drafters: each opens a session for a request, and the session drafts token trees."""

from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter, read_weights
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter
from specds.drafters.names import (
    DrafterInputs,
    DrafterName,
    make_drafter,
    open_drafter,
    require_inputs,
    with_trigrams,
)
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.protocol import (
    Drafter,
    ProposingSession,
    RecyclingSession,
    RequestRules,
    Session,
    TrialSession,
    node_budget,
)
from specds.drafters.rest import RestConfig, RestDrafter

__all__ = [
    "AdedConfig",
    "AdedDrafter",
    "Drafter",
    "DrafterInputs",
    "DrafterName",
    "Effort",
    "FusedConfig",
    "FusedDrafter",
    "NGrammysConfig",
    "NGrammysDrafter",
    "PromptLookupDrafter",
    "ProposingSession",
    "RecyclingSession",
    "RequestRules",
    "RestConfig",
    "RestDrafter",
    "Session",
    "TrialSession",
    "make_drafter",
    "node_budget",
    "open_drafter",
    "read_weights",
    "require_inputs",
    "with_trigrams",
]
