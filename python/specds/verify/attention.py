"""Attention that reads a prefix where it lies, and a copy of a model that attends by it."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from specds.kernels.operations import tree_attention
from specds.verify.inputs import LocalAttention
from specds.verify.linear import FastLinear, is_fast

# The name of `attend_packed` in transformers. It is registered for no mask function, so that
# transformers makes no masks.
PACKED = "specds_packed"
# The attribute by which the modules of a `packed_model` share the `Tree` of a pass.
_SHARED = "specds_shared"

# Arguments by which models ask for more than a softmax over masked and scaled products.
_UNKNOWN_TO_KERNEL = ("position_bias", "head_mask")
_UNKNOWN_TO_SDPA = ("softcap", "s_aux", *_UNKNOWN_TO_KERNEL)


class Tree(NamedTuple):
    """What takes the place of a mask: arguments of `tree_attention`, some of them by layer."""

    lengths: Tensor
    positions: Tensor
    ancestors: Tensor
    limits: Sequence[LocalAttention]


def attend_packed(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in which the query heads that share a key head are one longer sequence.

    So keys are not repeated for each of them, and not copied: they and values are views of a
    `TreeCache`, `(num_rows, num_key_heads, num_slots, head_dim)`. Queries are
    `(1, num_heads, num_rows * width, head_dim)`. The mask is additive,
    `(num_rows, 1, group * width, num_slots)`; None if a token sees every slot, or with a `Tree`.

    Returns:
        `(1, num_rows * width, num_heads, head_dim)`, and no weights.

    Raises:
        ValueError: The model asks, in its `kwargs`, for what is not computed here.
    """
    tree = module.__dict__.get(_SHARED, {}).get("tree")
    if tree is not None:
        _refuse(kwargs, _UNKNOWN_TO_KERNEL, makes_masks=attention_mask is not None)
        wanted = {"softcap": kwargs.get("softcap"), "sinks": kwargs.get("s_aux"), "scale": scaling}
        return attend_tree(tree, module.layer_idx, query, key, value, **wanted), None
    _, num_heads, num_tokens, head_dim = query.shape
    num_rows, num_key_heads = key.shape[:2]
    group, width = num_heads // num_key_heads, num_tokens // num_rows
    _refuse(kwargs, _UNKNOWN_TO_SDPA, makes_masks=attention_mask is None and width > 1)
    if attention_mask is not None and attention_mask.shape[2] != group * width:
        # Layers differ in their heads, and the mask is that of others.
        attention_mask = attention_mask[:, :, :width].repeat(1, 1, group, 1)
    query = query.view(num_key_heads, group, num_rows, width, head_dim)
    query = query.permute(2, 0, 1, 3, 4).reshape(num_rows, num_key_heads, -1, head_dim)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    output = output.view(num_rows, num_key_heads, group, width, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(1, num_tokens, num_heads, -1), None


AttentionInterface.register(PACKED, attend_packed)


def _refuse(asked: dict[str, Any], unknown: Sequence[str], *, makes_masks: bool) -> None:
    found = [name for name in unknown if asked.get(name) is not None]
    if found or makes_masks:
        what = f"with {found[0]}" if found else "that makes its own masks"
        raise ValueError(f"attention {what} cannot be packed: use verification='model'")


def attend_tree(tree: Tree, layer: int, query: Tensor, *states: Tensor, **asked: Any) -> Tensor:
    """`attend_packed` by the kernel."""
    by_row = query.view(query.shape[1], *tree.positions.shape, -1).transpose(0, 1)
    asked |= tree.limits[layer]._asdict()
    attended: Tensor = tree_attention(by_row, states[0], states[1], *tree[:3], **asked)
    return attended.flatten(0, 1)[None]


def group_size(config: Any) -> int:
    """How many query heads share a key head, by a text configuration."""
    num_heads = int(config.num_attention_heads)
    return num_heads // int(getattr(config, "num_key_value_heads", None) or num_heads)


def packed_model(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Tree | None]]:
    """A copy of a model that shares its weights, buffers and hooks and attends by `attend_packed`.

    On a CPU its linear layers are those of `specds.verify.linear`. Modules and configurations are
    its own, since these name the attention and every thread that runs the model reads them. Second,
    a dictionary in which its passes look for a "tree": without one they are masked.
    """
    made: dict[int, Any] = {}
    of_pass: dict[str, Tree | None] = {}

    def copied(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in made:
            kind, weight = type(module), module._parameters.get("weight")
            if kind is torch.nn.Linear and weight is not None and is_fast(weight):
                kind = FastLinear
            other = made[id(module)] = object.__new__(kind)
            other.__dict__.update(module.__dict__)
            inner = module._modules.items()
            other.__dict__["_modules"] = {of: None if m is None else copied(m) for of, m in inner}
            other.__dict__[_SHARED] = of_pass
            # What was compiled in place would run the original.
            other.__dict__["_compiled_call_impl"] = None
            if isinstance(config := module.__dict__.get("config"), PreTrainedConfig):
                packing = other.__dict__["config"] = made.setdefault(id(config), copy.copy(config))
                # The setter would write to nested configurations too, which are the model's own.
                packing.__dict__["_attn_implementation_internal"] = PACKED
        return made[id(module)]  # type: ignore[no-any-return]

    return copied(model), of_pass  # type: ignore[return-value]


def packing_reasons(model: PreTrainedModel, config: Any, *, has_kernel: bool) -> list[str]:
    """Why a model has no `packed_model`; empty where it has."""
    reasons = []
    if not model._supports_attention_backend:
        reasons.append("its attention cannot be exchanged")
    # Such a forward is bound to the original module, and would run that one.
    if any("forward" in module.__dict__ for module in model.modules()):
        reasons.append("the forward of one of its modules was replaced, as by offloading")
    if getattr(config, "attn_logit_softcapping", None) is not None and not has_kernel:
        reasons.append("its attention caps logits")
    return [f"{reason}: use verification='model'" for reason in reasons]
