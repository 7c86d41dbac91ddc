"""How does a draft attend: an attention that reads the states of a prefix where they lie, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import AttentionInterface

from specds.verify.tree_attention import tree_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specds.verify.masks import Sight

PACKED = "specds_packed"
"""The name of `attend_packed` among the attention functions of transformers.

No mask function has that name, so that transformers makes no masks of its own for it.
"""

SEEN = "specds_seen"
"""The attribute in which the modules of a `packed_model` have a `Seen`."""

# Named arguments by which models ask for more than a softmax over masked and scaled products.
_UNKNOWN_TO_KERNEL = ("position_bias", "head_mask")
_UNKNOWN_TO_SDPA = ("softcap", "s_aux", *_UNKNOWN_TO_KERNEL)


class Tree(NamedTuple):
    """What `tree_attention` must know of a pass over drafts, in place of a mask: its arguments."""

    lengths: torch.Tensor
    positions: torch.Tensor
    ancestors: torch.Tensor
    sights: Sequence[Sight]
    scratch: torch.Tensor


@dataclass
class Seen:
    """What the tokens of a model's present pass see, where that is no mask."""

    tree: Tree | None = None


class AttentionError(ValueError):
    """A model's attention is of a kind that cannot be computed over packed drafts."""


def attend_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in which the query heads that share a head of the keys are one longer sequence.

    Keys are so neither repeated for each of them nor copied: they are views of a `TreeCache`. The
    model may see the rows as one sequence or as parts that share one prefix; the mask tells which
    tokens see which.

    Args:
        module: The model's attention layer.
        query: `(num_parts, num_heads, num_tokens, head_dim)`, in all `num_rows * width` tokens.
        key: `(num_rows, num_key_heads, num_slots, head_dim)`.
        value: As `key`, its `head_dim` may be another.
        attention_mask: Additive, `(num_rows, 1, group * width, num_slots)` of as many query heads
            as share a head of the keys. None where every token sees every slot.
        scaling: Factor of the products; by default one over the root of `head_dim`.
        **kwargs: What else the model says.

    Returns:
        `(num_parts, num_tokens, num_heads, head_dim)`, and no weights.

    Raises:
        AttentionError: The model asks for what is not computed here.
    """
    seen = module.__dict__.get(SEEN)
    if seen is not None and seen.tree is not None:
        _refuse(kwargs, _UNKNOWN_TO_KERNEL, makes_masks=attention_mask is not None)
        wanted = {"softcap": kwargs.get("softcap"), "sinks": kwargs.get("s_aux"), "scale": scaling}
        layer: Any = module.layer_idx
        return attend_tree(seen.tree, layer, query, key, value, **wanted), None
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
        raise AttentionError(f"attention {what} cannot be packed: use verification='tree'")


def attend_tree(tree: Tree, layer: int, *states: torch.Tensor, **asked: Any) -> torch.Tensor:
    """`attend_packed` by the kernel: what it returns, of the tokens of all rows in one part."""
    query, key, value = states
    by_row = query.view(query.shape[1], *tree.positions.shape, -1).transpose(0, 1)
    window, chunk = tree.sights[layer]
    told = tree.lengths, tree.positions, tree.ancestors
    asked |= {"window": window, "chunk": chunk, "scratch": tree.scratch}
    attended: torch.Tensor = tree_attention(by_row, key, value, *told, **asked)
    return attended.flatten(0, 1)[None]


def group_size(config: Any) -> int:
    """How many query heads share a head of the keys, by a text configuration."""
    num_heads = int(config.num_attention_heads)
    return num_heads // int(getattr(config, "num_key_value_heads", None) or num_heads)
