"""How does a draft attend: an attention that reads the states of a prefix where they lie, once."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from specds.verify.masks import packed

PACKED = "specds_packed"
"""The name of `attend_packed` among the attention functions of transformers.

No mask function has that name, so that transformers makes no masks of its own for it.
"""

# Named arguments by which models ask for more than a softmax over masked and scaled products.
_UNKNOWN_HERE = ("softcap", "s_aux", "position_bias", "head_mask")


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
    queries of all sequences come in the order of the model's tokens, also where the model sees
    them as one sequence or as rows that share one prefix; the mask tells which tokens see which.

    Args:
        module: The model's attention layer; not used.
        query: `(num_parts, num_heads, num_tokens, head_dim)`, in all `num_rows * width` tokens.
        key: `(num_rows, num_key_heads, num_slots, head_dim)`.
        value: As `key`, its `head_dim` may be another.
        attention_mask: Additive, `(num_rows, 1, group * width, num_slots)` of as many query heads
            as share a head of the keys, one head's tokens after the other's (see `packed`). None
            where every token sees every slot.
        scaling: Factor of the products; by default one over the root of `head_dim`.
        **kwargs: What else the model says.

    Returns:
        `(num_parts, num_tokens, num_heads, head_dim)`, and no weights.

    Raises:
        AttentionError: The model asks for what is not computed here.
    """
    num_parts, num_heads, num_tokens, head_dim = query.shape
    num_rows, num_key_heads = key.shape[:2]
    group, width = num_heads // num_key_heads, num_parts * num_tokens // num_rows
    asked = [name for name in _UNKNOWN_HERE if kwargs.get(name) is not None]
    if asked or (attention_mask is None and width > 1):
        what = f"with {asked[0]}" if asked else "that makes its own masks"
        raise AttentionError(f"attention {what} cannot be packed: use verification='tree'")
    if attention_mask is not None and attention_mask.shape[2] != group * width:
        # Layers differ in their heads, and the mask is that of others.
        attention_mask = packed(attention_mask[:, :, :width], group)
    query = query.transpose(0, 1).reshape(num_key_heads, group, num_rows, width, head_dim)
    query = query.permute(2, 0, 1, 3, 4).reshape(num_rows, num_key_heads, -1, head_dim)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    output = output.view(num_rows, num_key_heads, group, width, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(num_parts, num_tokens, num_heads, -1), None


AttentionInterface.register(PACKED, attend_packed)


def group_size(config: Any) -> int:
    """How many query heads share a head of the keys, by a text configuration."""
    num_heads = int(config.num_attention_heads)
    return num_heads // int(getattr(config, "num_key_value_heads", None) or num_heads)
