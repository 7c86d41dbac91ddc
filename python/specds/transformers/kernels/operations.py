"""Four operations on tensors, each a launch or two of `programs`."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from math import gcd, prod
from typing import NamedTuple

import torch
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_SIZES = range(16, 257)
# A split of fewer slots costs more than it saves.
_MIN_SLOTS = 128
# Bytes of keys, and of values, that a program holds in each stage.
_TILE_BYTES = 16_384
# The queries that fit in the registers of four warps.
_MAX_QUERIES = 64
# Maximum programs for each multiprocessor; splits of the slots create more programs.
_MAX_PROGRAMS = 2
# Splits that are merged at once.
_TILE_SPLITS = 16
# Rows are padded to this number, so that few rows share one compiled program.
_TILE_ROWS = 32
# Maximum heads in a program of `rotate_and_store`: with one each, an H100 takes twice as long.
_HEADS = 4
# Numbers that a program of `gate` computes.
_TILE = 1024
_OPTIONS = {"enable_fp_fusion": True}  # the default, of which Triton 3.9 warns


def kernel_reason(
    device: torch.device, dtype: torch.dtype, head_sizes: Collection[int] = ()
) -> str | None:
    """Return why `tree_attention` cannot run on a device with these head sizes, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if dtype not in _DTYPES:
        return f"it does not compute in {dtype}"
    if others := [size for size in head_sizes if size not in _HEAD_SIZES]:
        return f"it does not support heads of size {others[0]}, only of 16 to 256"
    if device.type == "cuda":
        # Not tested with ROCm, which shares memory in another way.
        return None if torch.version.cuda is not None else "the device does not run CUDA"
    return None if _is_interpreted() else f"{device.type} is not a CUDA device"


def _is_interpreted() -> bool:
    from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

    from specds.transformers.kernels import programs

    return isinstance(programs.attend, InterpretedFunction)


class _Tiles(NamedTuple):
    """Division of the work into tiles of queries, tiles of slots, and splits of all rows."""

    queries: int
    slots: int
    splits: int
    least_slots: int
    warps: int
    stages: int

    @classmethod
    def of(cls, num_queries: int, num_heads: int, num_slots: int, keys: Tensor) -> _Tiles:
        """Choose by shapes alone, not by lengths, so that one CUDA graph serves all lengths.

        A single tile of queries is bound by memory: it gets one program for each multiprocessor,
        which loads ahead if there is room. Several tiles read the same slots and are bound by
        arithmetic: two programs hide each other's latency, best if both have room to load ahead.
        This was measured on an H100 in bfloat16.
        """
        size, head = keys.element_size(), power_of_two(keys.shape[-1])
        # Tensor cores do not multiply float32, so its tiles need more registers.
        queries = min(max(power_of_two(num_queries), 16), _MAX_QUERIES if size == 2 else 32)
        slots = min(max(_TILE_BYTES // (head * size), 16), 128)
        num_tiles, least = -(-num_queries // queries), max(_MIN_SLOTS, 4 * queries)
        num_processors, memory = _processors(keys.device)
        # At most three stages of keys and of values, and the queries.
        needed = 6 * _TILE_BYTES + queries * head * size
        each = 1 if num_tiles == 1 and needed <= memory else _MAX_PROGRAMS
        stages = 3 if each * needed <= memory else 2
        splits = max(each * num_processors // (num_tiles * num_heads), 1)
        splits = min(splits, -(-num_slots // least))
        return cls(queries, slots, splits, least, 8 if head > 128 else 4, stages)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()


@cache
def _processors(device: torch.device) -> tuple[int, int]:
    """Return the number of multiprocessors, and the bytes that a program can share on one."""
    if device.type != "cuda":
        return 4, 0
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.shared_memory_per_block_optin


@torch.library.custom_op("specds::tree_attention", mutates_args=())
def tree_attention(
    query: Tensor, keys: Tensor, values: Tensor,
    lengths: Tensor, positions: Tensor, ancestors: Tensor,
    scale: float | None = None, window: int | None = None, chunk: int | None = None,
    softcap: float | None = None, sinks: Tensor | None = None, block_table: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention of drafted nodes over a cache that already holds the nodes' states.

    Slot `i` of a row holds the token at position `i` where ``i < lengths[row]``, and node `j` is in
    slot ``lengths[row] + j``. Every node sees the whole prefix and the nodes that its bits mark.
    Neither shapes nor launches depend on the numbers in the tensors, so that one CUDA graph serves
    all lengths. Slots are split among programs; results are merged by log-sum-exp, in float32.

    Args:
        query: `(num_rows, num_heads, width, head_dim)` in float16, bfloat16 or float32. The last
            stride of this and of the other tensors must be 1.
        keys: `(num_rows, num_key_heads, num_slots, head_dim)`; heads of a group follow each other.
            With `block_table`, `(num_blocks, num_key_heads, block_size, head_dim)`.
        values: As `keys`; their `head_dim` may be another.
        lengths: int64 `(num_rows,)`, tokens before the nodes.
        positions: int64 `(num_rows, width)`, of the nodes.
        ancestors: int64 `(num_rows, width)`, or `(num_rows, width, num_words)` for more than 64
            nodes: node `i` sees node `j` by bit ``j % 64`` of word ``j // 64``, and itself.
        scale: Positive factor of the products; by default ``head_dim ** -0.5``.
        window: Number of last positions that a node sees, including its own; None for all.
        chunk: A node sees only positions from the last multiple of this number on.
        softcap: Scores become ``softcap * tanh(score / softcap)``.
        sinks: `(num_heads,)`, scores that count in the sum of the softmax but have no value.
        block_table: int32 or int64 `(num_rows, num_blocks_of_row)`: slot `i` of a row is slot
            ``i % block_size`` of its block ``i // block_size``.

    Returns:
        `(num_rows, width, num_heads, value_dim)`, contiguous, in the dtype of `query`.
    """
    from specds.transformers.kernels import programs

    num_words = 1 if ancestors.dim() == 2 else ancestors.shape[2]
    num_rows, num_heads, width, head_dim = query.shape
    num_key_heads, group = keys.shape[1], num_heads // keys.shape[1]
    num_slots = keys.shape[2] * (1 if block_table is None else block_table.shape[1])
    tiles = _Tiles.of(group * width, num_key_heads, num_rows * num_slots, keys)
    value_dim = values.shape[-1]
    output = query.new_empty(num_rows, width, num_heads, value_dim)
    lengths = lengths.contiguous()
    divided = width, num_key_heads, num_rows, tiles.splits, -(-tiles.least_slots // tiles.slots)
    sizes = {
        "group": group, "value_dim": value_dim, "window": window or 0, "chunk": chunk or 0,
        "tile_rows": max(power_of_two(num_rows), _TILE_ROWS), "tile_queries": tiles.queries,
        "tile_slots": tiles.slots, "tile_value": power_of_two(value_dim), **_OPTIONS,
    }  # fmt: skip
    # Rounding up adds less than one split for each row.
    grid = -(-group * width // tiles.queries), tiles.splits + num_rows - 1, num_key_heads
    # Each split stores, for each query, its values, their sum and maximum.
    of_split = tiles.queries * (power_of_two(value_dim) + 2)
    num_partials = prod(grid) * of_split if tiles.splits > 1 else 0
    partials = torch.empty(num_partials, dtype=torch.float32, device=query.device)
    programs.attend[grid](
        query, keys, values, lengths, positions.contiguous(), ancestors.contiguous(),
        lengths if sinks is None else sinks.contiguous(),
        lengths if block_table is None else block_table,
        output, partials, head_dim**-0.5 if scale is None else scale, *divided,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        0 if block_table is None else block_table.stride(0),
        words=num_words, head_dim=head_dim, softcap=softcap or 0.0, has_sinks=sinks is not None,
        block_size=0 if block_table is None else keys.shape[2], tile_head=power_of_two(head_dim),
        num_warps=tiles.warps, num_stages=tiles.stages, **sizes,
    )  # fmt: skip
    if tiles.splits > 1:
        programs.merge[(group * width, num_rows, num_key_heads)](
            partials, lengths, output, *divided, tile_splits=_TILE_SPLITS, **sizes
        )
    return output


@torch.library.custom_op("specds::add_norm", mutates_args=())
def add_norm(
    residual: Tensor, delta: Tensor | None, inner: Tensor | None, weight: Tensor,
    eps: float, offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add `delta` to the residual stream, and normalize the sum.

    Both are `(..., size)`, contiguous. `inner` are the weights of a norm of `delta`, if there is
    one; `offset` is added to the weights of both norms.

    Returns:
        The sum, and the normalized sum, both shaped like `residual`.
    """
    from specds.transformers.kernels import programs

    total, normed, size = torch.empty_like(residual), torch.empty_like(residual), weight.numel()
    programs.add_norm[(residual.numel() // size,)](
        residual, residual if delta is None else delta, weight if inner is None else inner,
        weight, total, normed, size, eps, offset=offset, has_delta=delta is not None,
        has_inner=inner is not None, tile=power_of_two(size), num_warps=8 if size > 2048 else 4,
        **_OPTIONS,
    )  # fmt: skip
    return total, normed


@torch.library.custom_op("specds::rotate_and_store", mutates_args=("keys", "values"))
def rotate_and_store(
    query: Tensor, key: Tensor, value: Tensor, query_norm: Tensor | None, key_norm: Tensor | None,
    cosines: Tensor, sines: Tensor, lengths: Tensor, positions: Tensor, keys: Tensor,
    values: Tensor, capacity: int, eps: float, offset: float,
) -> Tensor:  # fmt: skip
    """Apply rotary embeddings to queries and keys, and write keys and values to the cache.

    Query, key and value are `(1, num_tokens, heads * size)`, with any stride between tokens; the
    weights are those of norms of each head before its rotation. Cosines and sines are
    `(num_positions, size)`, with the sines of the first half of a head negated. Keys and values are
    the cache's slots `(num_slots, num_key_heads, size)`, `capacity` for each row; `lengths` and
    `positions` are as in `tree_attention`.

    Returns:
        The rotated queries, `(num_tokens, num_heads, size)`, in the dtype of the cache's keys.
    """
    from specds.transformers.kernels import programs

    num_tokens, (num_key_heads, size) = positions.numel(), keys.shape[1:]
    num_heads = query.shape[-1] // size
    heads = gcd(_HEADS, num_heads, num_key_heads)
    rotated = keys.new_empty(num_tokens, num_heads, size)
    programs.rotate_and_store[(num_tokens, (num_heads + 2 * num_key_heads) // heads)](
        query, key, value, query if query_norm is None else query_norm,
        query if key_norm is None else key_norm, cosines, sines, lengths, positions, rotated,
        keys, values, positions.shape[1], capacity, query.stride(-2), key.stride(-2),
        value.stride(-2), eps, num_heads=num_heads, num_key_heads=num_key_heads, size=size,
        offset=offset, has_norms=query_norm is not None, heads=heads, tile=power_of_two(size),
        num_warps=1, **_OPTIONS,
    )  # fmt: skip
    return rotated


@torch.library.custom_op("specds::gate", mutates_args=())
def gate(gates: Tensor, ups: Tensor, is_gelu: bool) -> Tensor:
    """Return SiLU (or the tanh form of GELU) of gates `(1, num_tokens, size)`, times `ups`."""
    from specds.transformers.kernels import programs

    _, num_tokens, size = gates.shape
    output = gates.new_empty(1, num_tokens, size)
    programs.gate[(num_tokens, -(-size // _TILE))](
        gates, ups, output, gates.stride(-2), ups.stride(-2), size,
        is_gelu=is_gelu, tile=_TILE, num_warps=4, **_OPTIONS,
    )  # fmt: skip
    return output
