"""Triton kernels, called by `operations` only."""

# Triton has no type annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def row_shares(
    lengths, width, num_rows, num_splits, least_tiles,
    window: tl.constexpr, chunk: tl.constexpr, tile_rows: tl.constexpr, tile_slots: tl.constexpr,
):  # fmt: skip
    """Divide rows into splits: each row's length, first slot, first split and number of splits.

    Also returns the tiles of a split. All splits have equally many slots, so a long row has more
    splits.
    """
    of_row = tl.arange(0, tile_rows)
    row_lengths = tl.load(lengths + of_row, mask=of_row < num_rows, other=0).to(tl.int32)
    begins = tl.zeros_like(row_lengths)
    # No other node of a row sees further back than the first.
    if window > 0:
        begins = tl.maximum(row_lengths - (window - 1), 0) // tile_slots * tile_slots
    if chunk > 0:
        begins = row_lengths // chunk * chunk // tile_slots * tile_slots
    num_tiles = (row_lengths + width - begins + tile_slots - 1) // tile_slots
    num_tiles = tl.where(of_row < num_rows, num_tiles, 0)
    tiles_each = tl.maximum((tl.sum(num_tiles, 0) + num_splits - 1) // num_splits, least_tiles)
    splits = (num_tiles + tiles_each - 1) // tiles_each
    firsts = tl.sum(tl.where(of_row[None, :] < of_row[:, None], splits[None, :], 0), 1)
    return row_lengths, begins, firsts, splits, tiles_each


@triton.jit(do_not_specialize=["num_rows", "num_splits", "least_tiles"])
def attend(
    query, keys, values, lengths, positions, ancestors, sinks, block_table,
    output, partials,
    scale, width, num_key_heads, num_rows, num_splits, least_tiles,
    query_row, query_head, query_node,
    key_block, key_head, key_slot,
    value_block, value_head, value_slot,
    table_row,
    group: tl.constexpr, words: tl.constexpr,
    head_dim: tl.constexpr, value_dim: tl.constexpr,
    window: tl.constexpr, chunk: tl.constexpr, softcap: tl.constexpr, has_sinks: tl.constexpr,
    block_size: tl.constexpr,
    tile_rows: tl.constexpr, tile_queries: tl.constexpr, tile_slots: tl.constexpr,
    tile_head: tl.constexpr, tile_value: tl.constexpr,
):  # fmt: skip
    """Attend with one tile of queries over one split of the slots, for one row and key head.

    Queries are the nodes of the group's heads, node by node. Slots are those of the prefix, then
    those of the nodes. If a row has several splits, `merge` joins their partial results. Scores are
    in base 2. Triton's interpreter supports all functions used here, in every release.
    """
    tile, place, key_head_index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row_lengths, begins, firsts, row_splits, tiles_each = row_shares(
        lengths, width, num_rows, num_splits, least_tiles, window, chunk, tile_rows, tile_slots
    )
    of_row = tl.arange(0, tile_rows)
    row_index = tl.sum(tl.where(firsts + row_splits <= place, 1, 0), 0)
    if row_index >= num_rows:
        return
    is_row, row = of_row == row_index, row_index.to(tl.int64)
    length = tl.sum(tl.where(is_row, row_lengths, 0), 0)
    begin = tl.sum(tl.where(is_row, begins, 0), 0)
    num_active = tl.sum(tl.where(is_row, row_splits, 0), 0)
    split = place - tl.sum(tl.where(is_row, firsts, 0), 0)
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
    of_slot = tl.arange(0, tile_slots)
    query_at = row * query_row + head.to(tl.int64) * query_head + node * query_node
    has_query = is_query[:, None] & (of_head < head_dim)[None, :]
    queries = tl.load(query + query_at[:, None] + of_head[None, :], mask=has_query, other=0.0)
    highest = tl.full((tile_queries,), float("-inf"), tl.float32)
    total = tl.full((tile_queries,), 0.0, tl.float32)
    if has_sinks:
        # Sinks count once, so they are added in one split.
        sink = tl.load(sinks + head, mask=is_query, other=float("-inf")).to(tl.float32)
        highest = tl.where(split == 0, sink * 1.4426950408889634, float("-inf"))
        total = tl.where(highest > float("-inf"), 1.0, 0.0)
    found = tl.full((tile_queries, tile_value), 0.0, tl.float32)
    keys += key_head_index.to(tl.int64) * key_head
    values += key_head_index.to(tl.int64) * value_head
    if block_size == 0:
        keys += row * key_block
        values += row * value_block
    start = begin + split * tiles_each * tile_slots
    for slot in range(start, tl.minimum(start + tiles_each * tile_slots, end), tile_slots):
        slots = slot + of_slot
        held = slots < end
        if block_size > 0:
            table_at = block_table + row * table_row + slots // block_size
            block = tl.load(table_at, mask=held, other=0).to(tl.int64)
            in_block = (slots % block_size).to(tl.int64)
            key_at = keys + (block * key_block + in_block * key_slot)[None, :]
            value_at = values + (block * value_block + in_block * value_slot)[:, None]
        else:
            # The first slot alone changes, so that each thread adds one number to its addresses.
            key_at = keys + slot * key_slot.to(tl.int64) + (of_slot * key_slot)[None, :]
            value_at = values + slot * value_slot.to(tl.int64) + (of_slot * value_slot)[:, None]
        has_key, has_value = held[None, :], held[:, None]
        if head_dim < tile_head:
            has_key = has_key & (of_head < head_dim)[:, None]
        if value_dim < tile_value:
            has_value = has_value & (of_value < value_dim)[None, :]
        seen_keys = tl.load(key_at + of_head[:, None], mask=has_key, other=0.0)
        scores = tl.dot(queries, seen_keys, input_precision="ieee")
        in_base_2 = scale * 1.4426950408889634
        if softcap > 0:
            # tanh(x) = (1 - exp(-2x)) / (1 + exp(-2x)), which cannot overflow for x > 0.
            less = tl.exp(tl.abs(scores * scale) * (-2 / softcap))
            scores = softcap * tl.where(scores > 0, 1 - less, less - 1) / (1 + less)
            in_base_2 = 1.4426950408889634
        # Most tiles are of the prefix alone, which all queries see.
        if slot + tile_slots > length or window > 0 or chunk > 0:
            behind = slots - length
            of_node = tl.minimum(tl.maximum(behind, 0), width - 1)
            word_at = (row * width + node)[:, None] * words
            if words > 1:
                word_at += (of_node // 64)[None, :]
            word = tl.load(ancestors + word_at, mask=is_query[:, None], other=0)
            seen = ((word >> (of_node % 64).to(tl.int64)[None, :]) & 1) != 0
            seen = held[None, :] & ((behind < 0)[None, :] | seen)
            if window > 0 or chunk > 0:
                deeper = tl.load(positions + row * width + of_node).to(tl.int32)
                position_at = tl.where(behind < 0, slots, deeper)
                seen = seen & (position_at[None, :] >= first[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * in_base_2)
        # A query may see nothing here.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores * in_base_2 - base[:, None])
        rescale = tl.exp2(highest - base)
        seen_values = tl.load(value_at + of_value[None, :], mask=has_value, other=0.0)
        found = found * rescale[:, None]
        found += tl.dot(shares.to(seen_values.dtype), seen_values, input_precision="ieee")
        total = total * rescale + tl.sum(shares, 1)
        highest = higher

    if num_active > 1:
        part = (key_head_index * tl.num_programs(0) + tile) * tl.num_programs(1) + place
        own = partials + part.to(tl.int64) * (tile_queries * (tile_value + 2))
        of_query = tl.arange(0, tile_queries)
        in_part = of_query[:, None] * tile_value + of_value[None, :]
        tl.store(own + in_part, found, mask=is_query[:, None])
        tl.store(own + tile_queries * tile_value + of_query, highest)
        tl.store(own + tile_queries * (tile_value + 1) + of_query, total)
        return

    found = found / tl.where(total > 0, total, 1.0)[:, None]
    head_at = (row * width + node) * (num_key_heads * group) + head
    output_at = output + head_at[:, None] * value_dim + of_value[None, :]
    has_output = is_query[:, None] & (of_value < value_dim)[None, :]
    tl.store(output_at, found.to(output.dtype.element_ty), mask=has_output)


@triton.jit(do_not_specialize=["num_rows", "num_splits", "least_tiles"])
def merge(
    partials, lengths, output, width, num_key_heads, num_rows, num_splits, least_tiles,
    group: tl.constexpr, value_dim: tl.constexpr, window: tl.constexpr, chunk: tl.constexpr,
    tile_rows: tl.constexpr, tile_queries: tl.constexpr, tile_slots: tl.constexpr,
    tile_value: tl.constexpr, tile_splits: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one query by log-sum-exp, always in the same order."""
    place, row_index, key_head_index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, _, firsts, row_splits, _ = row_shares(
        lengths, width, num_rows, num_splits, least_tiles, window, chunk, tile_rows, tile_slots
    )
    of_row, of_value = tl.arange(0, tile_rows), tl.arange(0, tile_value)
    is_row = of_row == row_index
    num_active = tl.sum(tl.where(is_row, row_splits, 0), 0)
    if num_active < 2:
        return
    num_tiles, query = (group * width + tile_queries - 1) // tile_queries, place % tile_queries
    part = (key_head_index * num_tiles + place // tile_queries) * (num_splits + num_rows - 1)
    part += tl.sum(tl.where(is_row, firsts, 0), 0)
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    found = tl.full((tile_value,), 0.0, tl.float32)
    for first in range(0, num_active, tile_splits):
        splits = first + tl.arange(0, tile_splits)
        held = splits < num_active
        parts = partials + (part + splits).to(tl.int64) * (tile_queries * (tile_value + 2))
        of_parts = parts + tile_queries * tile_value + query
        highs = tl.load(of_parts, mask=held, other=float("-inf"))
        totals = tl.load(of_parts + tile_queries, mask=held, other=0.0)
        value_at = parts[:, None] + query * tile_value + of_value[None, :]
        has_value = held[:, None] & (of_value < value_dim)[None, :]
        values = tl.load(value_at, mask=has_value, other=0.0)
        higher = tl.maximum(highest, tl.max(highs, 0))
        # A query may see nothing in these splits.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        rescale, weights = tl.exp2(highest - base), tl.exp2(highs - base)
        found = found * rescale + tl.sum(values * weights[:, None], 0)
        total = total * rescale + tl.sum(totals * weights, 0)
        highest = higher
    node, head = place // group, key_head_index * group + place % group
    head_at = (row_index.to(tl.int64) * width + node) * (num_key_heads * group) + head
    found = (found / tl.where(total > 0, total, 1.0)).to(output.dtype.element_ty)
    tl.store(output + head_at * value_dim + of_value, found, mask=of_value < value_dim)


@triton.jit
def add_norm(
    residual, delta, inner, weight, total, normed, size, eps, offset: tl.constexpr,
    has_delta: tl.constexpr, has_inner: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Normalize one token; numbers are rounded where the model itself would store a tensor."""
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
    offset: tl.constexpr, has_norms: tl.constexpr, heads: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Rotate some heads of one token: queries go to `rotated`, keys and values to their slots."""
    token, first = tl.program_id(0), tl.program_id(1) * heads
    row = token // width
    slot = row * capacity + tl.load(lengths + row) + token % width
    at, head = tl.arange(0, tile)[None, :], first + tl.arange(0, heads)[:, None]
    held = tl.broadcast_to(at < size, (heads, tile))
    if first >= num_heads + num_key_heads:
        of_value = head - num_heads - num_key_heads
        moved = tl.load(value + token * value_token + of_value * size + at, mask=held)
        tl.store(values + (slot * num_key_heads + of_value) * size + at, moved, mask=held)
        return
    if first < num_heads:
        source = query + token * query_token + head * size
        target = rotated + (token.to(tl.int64) * num_heads + head) * size
        norm = query_norm
    else:
        source = key + token * key_token + (head - num_heads) * size
        target = keys + (slot * num_key_heads + head - num_heads) * size
        norm = key_norm
    # Each number is rotated with the number half a head away.
    other_at = (at + size // 2) % size
    states = tl.load(source + at, mask=held, other=0.0).to(tl.float32)
    others = tl.load(source + other_at, mask=held, other=0.0).to(tl.float32)
    dtype = rotated.dtype.element_ty
    if has_norms:
        root = 1.0 / tl.sqrt(tl.sum(states * states, 1) / size + eps)[:, None]
        states *= root * (tl.load(norm + at, mask=at < size, other=0.0).to(tl.float32) + offset)
        others *= root * (
            tl.load(norm + other_at, mask=at < size, other=0.0).to(tl.float32) + offset
        )
        states, others = states.to(dtype).to(tl.float32), others.to(dtype).to(tl.float32)
    angle_at = tl.load(positions + token) * size + at
    states *= tl.load(cosines + angle_at, mask=at < size, other=0.0).to(tl.float32)
    states += others * tl.load(sines + angle_at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(target + at, states.to(dtype), mask=held)


@triton.jit
def gate(
    gates, ups, output, gate_token, up_token, size, is_gelu: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
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
