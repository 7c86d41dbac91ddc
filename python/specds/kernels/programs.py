"""The Triton kernels of `operations`, which alone calls them."""

from __future__ import annotations

# Triton has no types, and its kernels have none.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

try:
    from triton.language.extra.cuda import gdc_wait  # type: ignore[import-untyped]
except ImportError:  # Triton before 3.4 has no early launch: `Tuning.is_early` must stay off.
    gdc_wait = None


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def attend(
    query, keys, values, lengths, positions, ancestors, sinks, block_table,
    output, partials, counters,
    scale, width, num_key_heads, num_rows, num_splits,
    query_row, query_head, query_node,
    key_block, key_head, key_slot,
    value_block, value_head, value_slot,
    table_row,
    group: tl.constexpr, words: tl.constexpr,
    head_dim: tl.constexpr, value_dim: tl.constexpr,
    window: tl.constexpr, chunk: tl.constexpr, softcap: tl.constexpr, has_sinks: tl.constexpr,
    block_size: tl.constexpr, least_tiles: tl.constexpr, merge_stages: tl.constexpr,
    tile_rows: tl.constexpr, tile_queries: tl.constexpr, tile_slots: tl.constexpr,
    tile_head: tl.constexpr, tile_value: tl.constexpr,
):  # fmt: skip
    """One tile of queries over one split of the slots, for one row and key head.

    Queries are the nodes of the group's heads, node by node. Slots are those of the prefix, then
    those of the nodes. Each split has an equal share of the slots of all rows, so that a long row
    has more of them. The last one to end merges the results of all. Scores are in base 2.
    Triton's interpreter knows all functions that are used, in every release.
    """
    tile, place, key_head_index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    of_row = tl.arange(0, tile_rows)
    row_lengths = tl.load(lengths + of_row, mask=of_row < num_rows, other=0).to(tl.int32)
    begins = tl.zeros_like(row_lengths)
    # The first node of a row sees as far back as any.
    if window > 0:
        begins = tl.maximum(row_lengths - (window - 1), 0) // tile_slots * tile_slots
    if chunk > 0:
        begins = row_lengths // chunk * chunk // tile_slots * tile_slots
    num_tiles = (row_lengths + width - begins + tile_slots - 1) // tile_slots
    num_tiles = tl.where(of_row < num_rows, num_tiles, 0)
    tiles_each = tl.maximum((tl.sum(num_tiles, 0) + num_splits - 1) // num_splits, least_tiles)
    row_splits = (num_tiles + tiles_each - 1) // tiles_each
    ends = tl.sum(tl.where(of_row[None, :] <= of_row[:, None], row_splits[None, :], 0), 1)
    row_index = tl.sum(tl.where(ends <= place, 1, 0), 0)
    if row_index >= num_rows:
        return
    is_row, row = of_row == row_index, row_index.to(tl.int64)
    length = tl.sum(tl.where(is_row, row_lengths, 0), 0)
    begin = tl.sum(tl.where(is_row, begins, 0), 0)
    num_active = tl.sum(tl.where(is_row, row_splits, 0), 0)
    split = place - tl.sum(tl.where(is_row, ends - row_splits, 0), 0)
    places = tile * tile_queries + tl.arange(0, tile_queries)
    node, head = places // group, key_head_index * group + places % group
    is_query = node < width
    position = tl.load(positions + row * width + node, mask=is_query, other=2**30).to(tl.int32)

    if window > 0:
        first = position - (window - 1)
    if chunk > 0:
        first = position // chunk * chunk
    end = length + width
    of_head, of_value = tl.arange(0, tile_head), tl.arange(0, tile_value)
    query_at = row * query_row + head.to(tl.int64) * query_head + node * query_node
    has_query = is_query[:, None] & (of_head < head_dim)[None, :]
    queries = tl.load(query + query_at[:, None] + of_head[None, :], mask=has_query, other=0.0)
    highest = tl.full((tile_queries,), float("-inf"), tl.float32)
    total = tl.full((tile_queries,), 0.0, tl.float32)
    if has_sinks:
        # They are in the sum once, so in one split.
        sink = tl.load(sinks + head, mask=is_query, other=float("-inf")).to(tl.float32)
        highest = tl.where(split == 0, sink * 1.4426950408889634, float("-inf"))
        total = tl.where(highest > float("-inf"), 1.0, 0.0)
    found = tl.full((tile_queries, tile_value), 0.0, tl.float32)
    start = begin + split * tiles_each * tile_slots
    for slot in range(start, tl.minimum(start + tiles_each * tile_slots, end), tile_slots):
        slots = slot + tl.arange(0, tile_slots)
        held = slots < end
        block, in_block = row, slots
        if block_size > 0:
            table_at = block_table + row * table_row + slots // block_size
            block = tl.load(table_at, mask=held, other=0).to(tl.int64)
            in_block = slots % block_size
        key_at = block * key_block + key_head_index * key_head + in_block * key_slot.to(tl.int64)
        has_key = held[None, :] & (of_head < head_dim)[:, None]
        seen_keys = tl.load(keys + key_at[None, :] + of_head[:, None], mask=has_key, other=0.0)
        scores = tl.dot(queries, seen_keys, input_precision="ieee") * scale
        if softcap > 0:
            # tanh(x) = (1 - exp(-2x)) / (1 + exp(-2x)), which cannot overflow where x > 0.
            less = tl.exp(tl.abs(scores) * (-2 / softcap))
            scores = softcap * tl.where(scores > 0, 1 - less, less - 1) / (1 + less)
        behind = slots - length
        seen = tl.broadcast_to((behind < 0)[None, :], (tile_queries, tile_slots))
        position_at = slots
        if slot + tile_slots > length:
            of_node = held & (behind >= 0)
            behind = tl.maximum(behind, 0)
            word_at = (row * width + node)[:, None] * words + (behind // 64)[None, :]
            of_both = is_query[:, None] & of_node[None, :]
            word = tl.load(ancestors + word_at, mask=of_both, other=0)
            seen = seen | (((word >> (behind % 64).to(tl.int64)[None, :]) & 1) != 0)
            deeper = tl.load(positions + row * width + behind, mask=of_node, other=0)
            position_at = tl.where(of_node, deeper.to(tl.int32), slots)
        if window > 0 or chunk > 0:
            seen = seen & (position_at[None, :] >= first[:, None])
        scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        # A query may see nothing here.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores - base[:, None])
        rescale = tl.exp2(highest - base)
        slot_at = block * value_block + key_head_index * value_head
        slot_at += in_block * value_slot.to(tl.int64)
        value_at = values + slot_at[:, None] + of_value[None, :]
        has_value = held[:, None] & (of_value < value_dim)[None, :]
        seen_values = tl.load(value_at, mask=has_value, other=0.0)
        found = found * rescale[:, None]
        found += tl.dot(shares.to(seen_values.dtype), seen_values, input_precision="ieee")
        total = total * rescale + tl.sum(shares, 1)
        highest = higher

    if num_active > 1:
        # Rows whose splits are merged have less than twice their share.
        merged = tl.sum(tl.where((of_row < row_index) & (row_splits > 1), row_splits, 0), 0)
        program = (key_head_index * tl.num_programs(0) + tile) * 2 * num_splits + merged
        of_split: tl.constexpr = tile_queries * (tile_value + 2)
        of_query = tl.arange(0, tile_queries)
        first_partial = partials + program.to(tl.int64) * of_split
        in_partial = of_query[:, None] * tile_value + of_value[None, :]
        own = first_partial + split * of_split
        tl.store(own + in_partial, found, mask=is_query[:, None])
        tl.store(own + tile_queries * tile_value + of_query, highest)
        tl.store(own + tile_queries * (tile_value + 1) + of_query, total)
        tl.debug_barrier()
        num_before = tl.atomic_add(counters + program, 1, sem="acq_rel")
        if num_before < num_active - 1:
            return
        tl.store(counters + program, 0)
        highest = tl.full((tile_queries,), float("-inf"), tl.float32)
        total = tl.full((tile_queries,), 0.0, tl.float32)
        found = tl.full((tile_queries, tile_value), 0.0, tl.float32)
        for other in tl.range(0, num_active, num_stages=merge_stages):
            theirs = first_partial + other * of_split
            theirs_of_query = theirs + tile_queries * tile_value + of_query
            high = tl.load(theirs_of_query, cache_modifier=".cg")
            sum_of = tl.load(theirs_of_query + tile_queries, cache_modifier=".cg")
            higher = tl.maximum(highest, high)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            rescale, weight = tl.exp2(highest - base), tl.exp2(high - base)
            found = found * rescale[:, None]
            part_at = theirs + in_partial
            part = tl.load(part_at, mask=is_query[:, None], other=0.0, cache_modifier=".cg")
            found += part * weight[:, None]
            total = total * rescale + sum_of * weight
            highest = higher

    found = found / tl.where(total > 0, total, 1.0)[:, None]
    head_at = (row * width + node) * (num_key_heads * group) + head
    output_at = output + head_at[:, None] * value_dim + of_value[None, :]
    has_output = is_query[:, None] & (of_value < value_dim)[None, :]
    tl.store(output_at, found.to(output.dtype.element_ty), mask=has_output)


@triton.jit
def add_norm(
    residual, delta, inner, weight, total, normed, size, eps, offset: tl.constexpr,
    has_delta: tl.constexpr, has_inner: tl.constexpr, tile: tl.constexpr, is_early: tl.constexpr,
):  # fmt: skip
    """One token. Numbers are rounded where the model itself stores them in tensors."""
    if is_early:
        gdc_wait()
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
    offset: tl.constexpr, has_norms: tl.constexpr, tile: tl.constexpr, is_early: tl.constexpr,
):  # fmt: skip
    """One head of one token: of the query to `rotated`, of keys and values to their slots."""
    if is_early:
        gdc_wait()
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
    # Each number is rotated with the one half a head away.
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
def gate(
    gates, ups, output, gate_token, up_token, size, is_gelu: tl.constexpr, tile: tl.constexpr,
    is_early: tl.constexpr,
):  # fmt: skip
    if is_early:
        gdc_wait()
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
