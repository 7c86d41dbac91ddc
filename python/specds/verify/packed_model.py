"""How does a model attend otherwise without being changed: by another object of the same parts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig

from specds.verify.attention import PACKED, SEEN, Seen

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def packed_model(model: PreTrainedModel, seen: Seen | None = None) -> PreTrainedModel:
    """A model of the same modules, weights, buffers and hooks that attends by `attend_packed`.

    The choice of attention is a setting of the configuration, which all threads that run a model
    read. What is returned has configurations and module objects of its own; all else is shared, so
    that a change of the weights is one of both, and the model itself can be run meanwhile. `seen`
    says before each pass what its tokens see; None where all passes have masks.
    """
    made: dict[int, Any] = {}

    def shared(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in made:
            other = made[id(module)] = object.__new__(type(module))
            other.__dict__.update(module.__dict__)
            other.__dict__["_modules"] = {
                name: None if child is None else shared(child)
                for name, child in module._modules.items()
            }
            other.__dict__[SEEN] = seen
            # A model that was compiled in place would call the model that it was compiled for.
            other.__dict__["_compiled_call_impl"] = None
            if isinstance(config := module.__dict__.get("config"), PreTrainedConfig):
                other.__dict__["config"] = packing(config)
        return made[id(module)]  # type: ignore[no-any-return]

    def packing(config: PreTrainedConfig) -> PreTrainedConfig:
        if id(config) not in made:
            made[id(config)] = copy.copy(config)
            # The setter would pass it on to configurations within, which are the model's own.
            made[id(config)].__dict__["_attn_implementation_internal"] = PACKED
        return made[id(config)]  # type: ignore[no-any-return]

    return shared(model)  # type: ignore[return-value]


def packing_reasons(model: PreTrainedModel) -> list[str]:
    """Why a model cannot be packed so; empty where it can."""
    if not model._supports_attention_backend:
        return ["its attention cannot be exchanged"]
    # Such a forward is bound to the module that it was made for, and would run that one.
    if any("forward" in module.__dict__ for module in model.modules()):
        return ["the forward of one of its modules was replaced, as by offloading"]
    return []
