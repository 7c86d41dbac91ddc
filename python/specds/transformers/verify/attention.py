"""Attention that reads the prefix without a copy, and a copy of a model that uses it."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from specds.transformers.kernels.operations import tree_attention
from specds.transformers.verify.inputs import LocalAttention, kernel_size
from specds.transformers.verify.linear import FastLinear, is_fast

# The name of `attend_packed` in transformers. It has no mask function there, so that transformers
# makes no masks.
PACKED = "specds_packed"
# The attribute with which the modules of a `packed_model` share the `Tree` of a pass.
_SHARED = "specds_shared"

# Arguments of attention functions that the kernel does not support.
_UNKNOWN_TO_KERNEL = ("position_bias", "head_mask")
# Arguments of attention functions that torch's attention does not support.
_UNKNOWN_TO_SDPA = ("softcap", "s_aux", *_UNKNOWN_TO_KERNEL)


class Tree(NamedTuple):
    """Replacement of a mask: arguments of `tree_attention`; the limits are by layer."""

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
    """Attend with the query heads that share a key head joined to one longer sequence.

    Keys are then neither repeated for each query head nor copied.

    Args:
        module: The attention module that calls.
        query: `(1, num_heads, num_rows * width, head_dim)`.
        key: `(num_rows, num_key_heads, num_slots, head_dim)`, a view of a `TreeCache`.
        value: Like `key`.
        attention_mask: Additive, `(num_rows, 1, group * width, num_slots)`; None if a token sees
            every slot, or with a `Tree`.
        scaling: Factor of the products.
        **kwargs: Further arguments of the model.

    Returns:
        `(1, num_rows * width, num_heads, head_dim)`, and None for the weights.

    Raises:
        ValueError: The model passes an argument that is not supported here.
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
        # Layers differ in their number of heads, and the mask was made for another number.
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
    by_row = query.view(query.shape[1], *tree.positions.shape, -1).transpose(0, 1)
    asked |= tree.limits[layer]._asdict()
    attended: Tensor = tree_attention(by_row, states[0], states[1], *tree[:3], **asked)
    return attended.flatten(0, 1)[None]


def group_size(config: Any) -> int:
    """Return the number of query heads that share a key head, by a text configuration."""
    num_heads = int(config.num_attention_heads)
    return num_heads // int(getattr(config, "num_key_value_heads", None) or num_heads)


def packed_model(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Tree | None]]:
    """Copy a model, sharing its weights, buffers and hooks, to attend by `attend_packed`.

    Configurations are its own, since these name the attention and every thread that runs the model
    reads them. Second, a dictionary in which its passes look for a "tree": without one they are
    masked.
    """
    of_pass: dict[str, Tree | None] = {}
    return shared_copy(model, of_pass), of_pass


def shared_copy(
    model: PreTrainedModel, of_pass: dict[str, Tree | None] | None = None
) -> PreTrainedModel:
    """A copy of a model that shares its weights, buffers and hooks; packed with an `of_pass`.

    On a CPU, if it is not packed, its linear layers are those of `linear`.
    """
    made: dict[int, Any] = {}

    def copied(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in made:
            kind, weight = type(module), module._parameters.get("weight")
            is_linear = kind is torch.nn.Linear and of_pass is None
            if is_linear and weight is not None and is_fast(weight):
                kind = FastLinear
            other = made[id(module)] = object.__new__(kind)
            other.__dict__.update(module.__dict__)
            inner = module._modules.items()
            other.__dict__["_modules"] = {of: None if m is None else copied(m) for of, m in inner}
            if of_pass is not None:
                other.__dict__[_SHARED] = of_pass
            # A module compiled in place would run the original.
            other.__dict__["_compiled_call_impl"] = None
            config = module.__dict__.get("config")
            if of_pass is not None and isinstance(config, PreTrainedConfig):
                packing = other.__dict__["config"] = made.setdefault(id(config), copy.copy(config))
                # The setter would write to nested configurations too, which are the model's own.
                packing.__dict__["_attn_implementation_internal"] = PACKED
        return made[id(module)]  # type: ignore[no-any-return]

    return copied(model)  # type: ignore[return-value]


def packing_reasons(model: PreTrainedModel, *, has_kernel: bool) -> list[str]:
    """Return the reasons against a `packed_model`; none if there can be one."""
    reasons, config = [], model.config.get_text_config(decoder=True)
    if not model._supports_attention_backend:
        reasons.append("its attention cannot be exchanged")
    # A replaced forward is bound to the original module, and would run that one.
    if any("forward" in module.__dict__ for module in model.modules()):
        reasons.append("the forward of one of its modules was replaced, as by offloading")
    if kernel_size(config):
        reasons.append("its convolutions see only the last ancestors of a token")
    if getattr(config, "attn_logit_softcapping", None) is not None and not has_kernel:
        reasons.append("its attention caps logits")
    return [f"{reason}: use verification='model'" for reason in reasons]
