"""Hierarchies: small models draft for larger ones, a datastore for the smallest (HSDDW).

Read in this order: `config`, `text` (tokens on trial), `draft` (what a level hands up), `levels`
(a level drafts by verifying the level below), `drafter` (the levels of one request). The rule by
which a sampled token is accepted is `specds.accept.draws`. Imports `specds.accept` and what lies
below it, not `specds.generation`. This file registers the name, which needs no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.drafters import KINDS, Drafter, DrafterInputs
from specds.drafters.registry import Kind
from specds.hierarchy.config import ABLATIONS, Ablation, HierarchyConfig

if TYPE_CHECKING:
    from specds.hierarchy.drafter import HierarchyDrafter, HierarchySession

__all__ = ["ABLATIONS", "HierarchyConfig", "HierarchyDrafter", "HierarchySession"]

__getattr__ = lazy(__name__, "drafter")


def _load(
    inputs: DrafterInputs, *models: str, ablation: Ablation = "full"
) -> Callable[[], Drafter]:
    from specds.hierarchy.drafter import maker

    return maker(inputs, models, HierarchyConfig.ablation(ablation))


KINDS["hierarchy"] = Kind(
    _load, {"ablation": ABLATIONS}, "used", needs_model=True, takes_tables=True, takes_models=True
)
