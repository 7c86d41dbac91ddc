"""What lies between a layer's products: three operations, each one launch of a kernel."""

from __future__ import annotations

import torch

from specds.verify.tree_attention import power_of_two

# Numbers of a token that a program of `gate` computes.
_TILE = 1024
_OPTIONS = {"enable_fp_fusion": True}  # the default, of which Triton 3.9 warns


@torch.library.custom_op("specds::add_norm", mutates_args=())
def add_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    inner: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds `delta`, what a layer has found, to its states, and norms the sum for the next layer.

    Both are `(..., size)`, contiguous. `inner` has the weights of a norm of `delta` itself, where
    there is one; `offset` is added to the weights of both norms.

    Returns:
        The sum, and the same normed.
    """
    from specds.verify import kernels

    total, normed, size = torch.empty_like(residual), torch.empty_like(residual), weight.numel()
    kernels.add_norm[(residual.numel() // size,)](
        residual, residual if delta is None else delta, weight if inner is None else inner,
        weight, total, normed, size, eps, offset=offset, has_delta=delta is not None,
        has_inner=inner is not None, tile=power_of_two(size), num_warps=8 if size > 2048 else 4,
        **_OPTIONS,
    )  # fmt: skip
    return total, normed


@torch.library.custom_op("specds::rotate_and_store", mutates_args=("keys", "values"))
def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    capacity: int,
    eps: float,
    offset: float,
) -> torch.Tensor:
    """Turns queries and keys by their positions, and writes keys and values to the cache.

    Query, key and value are `(1, num_tokens, heads * size)`, of any stride between tokens; weights
    are of norms of each head, before it is turned. Cosines and sines are `(num_positions, size)`,
    the sines of the first half of a head with the other sign. Keys and values are the cache's slots
    `(num_slots, num_key_heads, size)`, `capacity` a row; `lengths`, int64 `(num_rows,)`, and
    `positions`, int64 `(num_rows, width)`, tell where tokens are.

    Returns:
        The turned queries, `(num_tokens, num_heads, size)`.
    """
    from specds.verify import kernels

    num_tokens, (num_key_heads, size) = positions.numel(), keys.shape[1:]
    num_heads = query.shape[-1] // size
    rotated = query.new_empty(num_tokens, num_heads, size)
    kernels.rotate_and_store[(num_tokens, num_heads + 2 * num_key_heads)](
        query, key, value, query if query_norm is None else query_norm,
        query if key_norm is None else key_norm, cosines, sines, lengths, positions,
        rotated, keys, values,
        positions.shape[1], capacity, query.stride(-2), key.stride(-2), value.stride(-2), eps,
        num_heads=num_heads, num_key_heads=num_key_heads, size=size,
        offset=offset, has_norms=query_norm is not None, tile=power_of_two(size), num_warps=1,
        **_OPTIONS,
    )  # fmt: skip
    return rotated


@torch.library.custom_op("specds::gate", mutates_args=())
def gate(gates: torch.Tensor, ups: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    """The activation (SiLU, or GELU by its tanh) of gates `(1, num_tokens, size)`, times `ups`."""
    from specds.verify import kernels

    _, num_tokens, size = gates.shape
    output = gates.new_empty(1, num_tokens, size)
    kernels.gate[(num_tokens, -(-size // _TILE))](
        gates, ups, output, gates.stride(-2), ups.stride(-2), size,
        is_gelu=is_gelu, tile=_TILE, num_warps=4, **_OPTIONS,
    )  # fmt: skip
    return output
