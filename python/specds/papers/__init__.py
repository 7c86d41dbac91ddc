"""Methods of papers, for comparison: REST, ADED, N-Grammys, prompt lookup, hierarchies of models.

This module registers the name `hierarchy`, which needs no torch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.drafters import KINDS, Drafter, DrafterInputs
from specds.drafters.papers.aded import AdedConfig, AdedDrafter
from specds.drafters.papers.n_grammys import NGrammysConfig, NGrammysDrafter
from specds.drafters.papers.prompt_lookup import PromptLookupDrafter
from specds.drafters.papers.rest import RestConfig, RestDrafter
from specds.drafters.registry import DrafterKind
from specds.transformers.hierarchy.config import ABLATIONS, Ablation, HierarchyConfig

if TYPE_CHECKING:
    from specds.models.resolve import ModelRef
    from specds.transformers.hierarchy.drafter import HierarchyDrafter, HierarchySession
    from specds.transformers.verify.path_rows import PathRows

__all__ = [
    "ABLATIONS",
    "AdedConfig",
    "AdedDrafter",
    "HierarchyConfig",
    "HierarchyDrafter",
    "HierarchySession",
    "NGrammysConfig",
    "NGrammysDrafter",
    "PathRows",
    "PromptLookupDrafter",
    "RestConfig",
    "RestDrafter",
]

__getattr__ = lazy(__name__, "transformers.hierarchy.drafter", "transformers.verify.path_rows")


def _load(
    inputs: DrafterInputs,
    *models: "str | ModelRef",
    ablation: Ablation = "full",
    joined: str = "no",
) -> Callable[[], Drafter]:
    from specds.transformers.hierarchy.drafter import maker

    config = replace(HierarchyConfig.ablation(ablation), joined=joined == "yes")
    return maker(inputs, models, config)


_OPTIONS: dict[str, tuple[str, ...]] = {"ablation": ABLATIONS, "joined": ("no", "yes")}
KINDS["hierarchy"] = DrafterKind(
    _load, _OPTIONS, required=("model",), optional=("datastore", "model_tables"), takes_models=True
)
