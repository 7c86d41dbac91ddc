"""Hierarchies: small models draft for larger ones, a datastore for the smallest (HSDDW and beyond).

Read in this order: `config`, `context` (speculative tokens), `draft` (the result of a level),
`levels` (a level drafts by verifying the level below it), `drafter` (the chain of one request). The
rule that accepts a sampled token is `specds.accept.draws`. This module registers the drafter's
name, which needs no torch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.drafters import KINDS, Drafter, DrafterInputs
from specds.drafters.registry import DrafterKind
from specds.hierarchy.config import ABLATIONS, Ablation, HierarchyConfig

if TYPE_CHECKING:
    from specds.hierarchy.drafter import HierarchyDrafter, HierarchySession
    from specds.models.resolve import ModelRef

__all__ = ["ABLATIONS", "HierarchyConfig", "HierarchyDrafter", "HierarchySession"]

__getattr__ = lazy(__name__, "drafter")


def _load(
    inputs: DrafterInputs,
    *models: "str | ModelRef",
    ablation: Ablation = "full",
    joined: str = "no",
) -> Callable[[], Drafter]:
    from specds.hierarchy.drafter import maker

    config = replace(HierarchyConfig.ablation(ablation), joined=joined == "yes")
    return maker(inputs, models, config)


_OPTIONS: dict[str, tuple[str, ...]] = {"ablation": ABLATIONS, "joined": ("no", "yes")}
KINDS["hierarchy"] = DrafterKind(
    _load, _OPTIONS, required=("model",), optional=("datastore", "model_tables"), takes_models=True
)
