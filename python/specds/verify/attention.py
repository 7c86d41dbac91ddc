"""How does a draft attend: an attention that reads a prefix where it lies, and a model with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from specds.kernels.operations import tree_attention
from specds.verify.inputs import Sight

# The name of `attend_packed` among the attention functions of transformers. No mask function has
# it, so that transformers makes no masks of its own.
PACKED = "specds_packed"
# The attribute in which the modules of a `packed_model` share what they are told of a pass.
_TOLD = "specds_told"

# Named arguments by which models ask for more than a softmax over masked and scaled products.
_UNKNOWN_TO_KERNEL = ("position_bias", "head_mask")
_UNKNOWN_TO_SDPA = ("softcap", "s_aux", *_UNKNOWN_TO_KERNEL)


class Tree(NamedTuple):
    """What stands in place of a mask: arguments of `tree_attention`, and by layer its `Sight`."""

    lengths: torch.Tensor
    positions: torch.Tensor
    ancestors: torch.Tensor
    sights: Sequence[Sight]
    scratch: torch.Tensor


def attend_packed(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in which the query heads that share a head of the keys are one longer sequence.

    Keys are so neither repeated for each of them nor copied: they are views of a `TreeCache`,
    `(num_rows, num_key_heads, num_slots, head_dim)`, as are values. Queries are
    `(num_parts, num_heads, num_tokens, head_dim)`, in all `num_rows * width` tokens: the rows as
    one sequence, or as parts that share one prefix. The mask is additive,
    `(num_rows, 1, group * width, num_slots)`, and None where every token sees every slot or the
    module has a `Tree`.

    Returns:
        `(num_parts, num_tokens, num_heads, head_dim)`, and no weights.

    Raises:
        ValueError: The model asks, in its `kwargs`, for what is not computed here.
    """
    tree = module.__dict__.get(_TOLD, {}).get("tree")
    if tree is not None:
        _refuse(kwargs, _UNKNOWN_TO_KERNEL, makes_masks=attention_mask is not None)
        wanted = {"softcap": kwargs.get("softcap"), "sinks": kwargs.get("s_aux"), "scale": scaling}
        return attend_tree(tree, module.layer_idx, query, key, value, **wanted), None
    num_parts, num_heads, num_tokens, head_dim = query.shape
    num_rows, num_key_heads = key.shape[:2]
    group, width = num_heads // num_key_heads, num_parts * num_tokens // num_rows
    _refuse(kwargs, _UNKNOWN_TO_SDPA, makes_masks=attention_mask is None and width > 1)
    if attention_mask is not None and attention_mask.shape[2] != group * width:
        # Layers differ in their heads, and the mask is that of others.
        attention_mask = attention_mask[:, :, :width].repeat(1, 1, group, 1)
    query = query.transpose(0, 1).reshape(num_key_heads, group, num_rows, width, head_dim)
    query = query.permute(2, 0, 1, 3, 4).reshape(num_rows, num_key_heads, -1, head_dim)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    output = output.view(num_rows, num_key_heads, group, width, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(num_parts, num_tokens, num_heads, -1), None


AttentionInterface.register(PACKED, attend_packed)


def _refuse(asked: dict[str, Any], unknown: Sequence[str], *, makes_masks: bool) -> None:
    found = [name for name in unknown if asked.get(name) is not None]
    if found or makes_masks:
        what = f"with {found[0]}" if found else "that makes its own masks"
        raise ValueError(f"attention {what} cannot be packed: use verification='tree'")


def attend_tree(
    tree: Tree, layer: int, query: torch.Tensor, *states: torch.Tensor, **asked: Any
) -> torch.Tensor:
    """`attend_packed` by the kernel: what it returns, of the tokens of all rows in one part."""
    by_row = query.view(query.shape[1], *tree.positions.shape, -1).transpose(0, 1)
    asked |= {"scratch": tree.scratch, **tree.sights[layer]._asdict()}
    attended: torch.Tensor = tree_attention(by_row, *states, *tree[:3], **asked)
    return attended.flatten(0, 1)[None]


def group_size(config: Any) -> int:
    """How many query heads share a head of the keys, by a text configuration."""
    num_heads = int(config.num_attention_heads)
    return num_heads // int(getattr(config, "num_key_value_heads", None) or num_heads)


def packed_model(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Tree | None]]:
    """A model of the same modules, weights, buffers and hooks that attends by `attend_packed`.

    It has configurations and module objects of its own, as the choice of attention is a setting of
    the configuration, which all threads that run a model read; all else is shared. With it comes
    what its passes read: they have masks but for a "tree" that stands there.
    """
    made: dict[int, Any] = {}
    told: dict[str, Tree | None] = {}

    def shared(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in made:
            other = made[id(module)] = object.__new__(type(module))
            other.__dict__.update(module.__dict__)
            other.__dict__["_modules"] = {
                name: None if child is None else shared(child)
                for name, child in module._modules.items()
            }
            other.__dict__[_TOLD] = told
            # A model that was compiled in place would call the model that it was compiled for.
            other.__dict__["_compiled_call_impl"] = None
            if isinstance(config := module.__dict__.get("config"), PreTrainedConfig):
                packing = other.__dict__["config"] = made.setdefault(id(config), copy.copy(config))
                # The setter would pass it on to configurations within, which are the model's own.
                packing.__dict__["_attn_implementation_internal"] = PACKED
        return made[id(module)]  # type: ignore[no-any-return]

    return shared(model), told  # type: ignore[return-value]


def packing_reasons(model: PreTrainedModel, config: Any, *, has_kernel: bool) -> list[str]:
    """Why a model cannot be packed so; empty where it can."""
    reasons = []
    if not model._supports_attention_backend:
        reasons.append("its attention cannot be exchanged")
    # Such a forward is bound to the module that it was made for, and would run that one.
    if any("forward" in module.__dict__ for module in model.modules()):
        reasons.append("the forward of one of its modules was replaced, as by offloading")
    if getattr(config, "attn_logit_softcapping", None) is not None and not has_kernel:
        reasons.append("its attention caps logits")
    return [f"{reason}: use verification='tree'" for reason in reasons]
