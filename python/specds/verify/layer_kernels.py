"""What lies between a layer's products as three Triton kernels: see `layer_operations`."""

from __future__ import annotations

# Triton has no types, and its kernels have none.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def add_norm(
    residual, delta, inner, weight, total, normed, size, eps, offset: tl.constexpr,
    has_delta: tl.constexpr, has_inner: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One token: what a layer adds, normed before where it has an inner norm, and the norm after.

    Numbers are rounded where the model itself has them as tensors.
    """
    at = tl.arange(0, tile)
    held = at < size
    at_token = tl.program_id(0).to(tl.int64) * size + at
    states = tl.load(residual + at_token, mask=held, other=0.0).to(tl.float32)
    dtype = normed.dtype.element_ty
    if has_delta:
        added = tl.load(delta + at_token, mask=held, other=0.0).to(tl.float32)
        if has_inner:
            scales = tl.load(inner + at, mask=held, other=0.0).to(tl.float32) + offset
            added = added * (1.0 / tl.sqrt(tl.sum(added * added, 0) / size + eps)) * scales
            added = added.to(dtype).to(tl.float32)
        states = (states + added).to(dtype).to(tl.float32)
    tl.store(total + at_token, states.to(dtype), mask=held)
    scales = tl.load(weight + at, mask=held, other=0.0).to(tl.float32) + offset
    states = states * (1.0 / tl.sqrt(tl.sum(states * states, 0) / size + eps)) * scales
    tl.store(normed + at_token, states.to(dtype), mask=held)


@triton.jit
def rotate_and_store(
    query, key, value, query_norm, key_norm, cosines, sines, lengths, positions,
    rotated, keys, values,
    width, capacity, query_token, key_token, value_token, eps,
    num_heads: tl.constexpr, num_key_heads: tl.constexpr, size: tl.constexpr,
    offset: tl.constexpr, has_norms: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One head of one token: of the query to `rotated`, of keys and values to their slots."""
    token, head = tl.program_id(0), tl.program_id(1)
    row = token // width
    slot = row * capacity + tl.load(lengths + row) + token % width
    at = tl.arange(0, tile)
    held = at < size
    if head >= num_heads + num_key_heads:
        of_value = head - num_heads - num_key_heads
        moved = tl.load(value + token * value_token + of_value * size + at, mask=held)
        tl.store(values + (slot * num_key_heads + of_value) * size + at, moved, mask=held)
        return
    if head < num_heads:
        source = query + token * query_token + head * size
        target = rotated + (token.to(tl.int64) * num_heads + head) * size
        norm = query_norm
    else:
        source = key + token * key_token + (head - num_heads) * size
        target = keys + (slot * num_key_heads + head - num_heads) * size
        norm = key_norm
    # What each number is turned with: the one half a head away.
    other_at = (at + size // 2) % size
    states = tl.load(source + at, mask=held, other=0.0).to(tl.float32)
    others = tl.load(source + other_at, mask=held, other=0.0).to(tl.float32)
    dtype = rotated.dtype.element_ty
    if has_norms:
        root = 1.0 / tl.sqrt(tl.sum(states * states, 0) / size + eps)
        states *= root * (tl.load(norm + at, mask=held, other=0.0).to(tl.float32) + offset)
        others *= root * (tl.load(norm + other_at, mask=held, other=0.0).to(tl.float32) + offset)
        states, others = states.to(dtype).to(tl.float32), others.to(dtype).to(tl.float32)
    angle_at = tl.load(positions + token) * size + at
    states *= tl.load(cosines + angle_at, mask=held, other=0.0).to(tl.float32)
    states += others * tl.load(sines + angle_at, mask=held, other=0.0).to(tl.float32)
    tl.store(target + at, states.to(dtype), mask=held)


@triton.jit
def gate(gates, ups, output, gate_token, up_token, size, is_gelu: tl.constexpr, tile: tl.constexpr):
    """A tile of one token: the activation of gates, times what they let through."""
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * tile + tl.arange(0, tile)
    held = at < size
    states = tl.load(gates + token * gate_token + at, mask=held, other=0.0).to(tl.float32)
    steep = states
    if is_gelu:  # 1 + tanh(x) = 2 sigmoid(2x)
        steep = 1.5957691216057308 * (states + 0.044715 * states * states * states)
    states = states / (1.0 + tl.exp(-steep))
    dtype = output.dtype.element_ty
    through = tl.load(ups + token * up_token + at, mask=held, other=0.0).to(tl.float32)
    tl.store(output + token * size + at, states.to(dtype).to(tl.float32) * through, mask=held)
