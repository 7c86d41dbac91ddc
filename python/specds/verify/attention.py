"""How do several rows attend to one prefix: an attention that lays the rows side by side."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock, local
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

IN_ROWS = "specds_in_rows"
"""The name of `attend_in_rows` among the attention functions of transformers."""

# Named arguments by which models ask for more than a softmax over masked and scaled products.
_UNKNOWN_HERE = ("softcap", "s_aux", "position_bias", "head_mask")

one_at_a_time = RLock()
"""Held while the attention of a model is exchanged, and while it must not be."""

_thread = local()


class AttentionError(ValueError):
    """A model's attention is of a kind that cannot be computed for rows with a common prefix."""


def attend_in_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a batch of rows to one prefix and each to itself, by one softmax over both.

    The rows become one sequence: `TreeCache` has written their states one row after the other
    behind the prefix, so keys and values are views of the cache, and the mask keeps the rows apart.
    The query heads that share a head of the keys are laid side by side too, instead of repeating
    the keys for each of them.

    Args:
        module: The model's attention layer; not used.
        query: `(num_rows, num_heads, width, head_dim)`.
        key: `(1, num_key_heads, prefix_length + num_rows * width, head_dim)`.
        value: As `key`, its `head_dim` may be another.
        attention_mask: Additive, `(1, 1, num_rows * width, prefix_length + num_rows * width)`.
        scaling: Factor of the products; by default one over the root of `head_dim`.
        **kwargs: What else the model says.

    Returns:
        `(num_rows, width, num_heads, head_dim)`, and no weights.

    Raises:
        AttentionError: The model asks for what is not computed here.
        RuntimeError: Another thread runs the model while this function is switched on.
    """
    if not getattr(_thread, "in_rows", False):
        raise RuntimeError(
            "the model verifies in batches in another thread: run it in one thread at a time, or "
            "use verification='tree' there"
        )
    asked = [name for name in _UNKNOWN_HERE if kwargs.get(name) is not None]
    if asked or attention_mask is None or key.shape[0] != 1:
        what = f"with {asked[0]}" if asked else "that makes its own masks or states"
        raise AttentionError(
            f"attention {what} cannot be verified in batches: use verification='tree'"
        )
    num_rows, num_heads, width, head_dim = query.shape
    num_key_heads = key.shape[1]
    group = num_heads // num_key_heads
    query = query.view(num_rows, num_key_heads, group, width, head_dim)
    query = query.permute(1, 2, 0, 3, 4).reshape(1, num_key_heads, -1, head_dim)
    if group > 1:
        attention_mask = attention_mask.repeat(1, 1, group, 1)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    output = output.view(num_key_heads, group, num_rows, width, -1).permute(2, 3, 0, 1, 4)
    return output.reshape(num_rows, width, num_heads, -1), None


AttentionInterface.register(IN_ROWS, attend_in_rows)


@contextmanager
def rows_share_the_prefix(config: Any) -> Iterator[None]:
    """Has the models of a text configuration attend by `attend_in_rows`, in this thread.

    Other threads that verify in batches wait; what else runs the model meanwhile is refused.
    """
    with one_at_a_time:
        implementation = config._attn_implementation
        config._attn_implementation = IN_ROWS
        _thread.in_rows = True
        try:
            yield
        finally:
            _thread.in_rows = False
            config._attn_implementation = implementation
