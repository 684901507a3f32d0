"""Paged attention on a GPU: decoding, prompts and the verification of drafts in one kernel.

A program takes a tile of one row's queries with all query heads of one key and value head, so that
a key is loaded once for all of them, and goes over the keys once with the running softmax of
FlashAttention-2 (T. Dao, 2023). Where the tiles alone are too few for the device, the keys of a row
are cut into parts that have programs of their own, and a second kernel merges these by the
logarithms of their sums (Flash-Decoding: T. Dao, D. Haziza, F. Massa, G. Sizov, 2023). Pages that
all rows share may be attended once, by the queries of all rows together, as one more part
(Hydragen: J. Juravsky et al., 2024).

A window cuts the keys of a tile to those that its first query sees and later ones, and so does a
chunk, beyond whose first position its queries do not see; a sink is a score without a value with
which the first part of the keys begins.

Scores and sums are float32. What varies from step to step is read from arrays on the device, and
the grid depends on the shape of the launch alone, so that a launch can be captured in a graph.

The floor is the memory's: every key and value is read once for each row, kv_length * kv_heads *
head_dim * 2 elements; parts add heads * (head_dim + 1) floats each, written and read.

:mod:`tests.attention_reference` computes the same in torch.
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.attention.merging import Parts, merge, room_for
from pyengine.kernels.attention.tiling import Tiling, power_of_two
from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton


@dataclass(frozen=True)
class Pages:
    """Each row's queries and pages: views of the step on the device.

    Attributes:
        query_start: int32 [rows + 1 or more], first query token of each row, and the end.
        kv_length: int32 [rows or more], keys of each row; its queries are the last of them.
        page_indptr: int32 [rows + 1 or more], where each row's pages begin.
        page_indices: int32, the pages.
    """

    query_start: torch.Tensor
    kv_length: torch.Tensor
    page_indptr: torch.Tensor
    page_indices: torch.Tensor


@triton.jit
def row_of_tile(query_start_ptr, rows, tile, QUERIES: tl.constexpr):
    """The row whose tile number ``tile`` is, where row r's begin at query_start[r] // QUERIES + r.

    That leaves room for every row's last, partly filled tile, whatever the lengths are.
    """
    low = tile * 0
    high = rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        begin = tl.load(query_start_ptr + middle) // QUERIES + middle
        low = tl.where(begin <= tile, middle, low)
        high = tl.where(begin <= tile, high, middle - 1)
    return low


@triton.jit
def load_tile(
    cache_ptr, pages_ptr, keys, end, block_stride, slot_stride,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys or values of one head, [keys, dims]; zeros from key ``end`` on, where MASKED."""
    dims = tl.arange(0, DIM)
    inside = dims < HEAD_DIM
    if MASKED:
        present = keys < end
        page = tl.load(pages_ptr + keys // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        mask = present[:, None] & inside[None, :]
    else:
        page = tl.load(pages_ptr + keys // BLOCK_SIZE).to(tl.int64)
        mask = inside[None, :] & (keys >= 0)[:, None]
    at = page * block_stride + (keys % BLOCK_SIZE) * slot_stride
    pointers = cache_ptr + at[:, None] + dims[None, :]
    if MASKED or HEAD_DIM != DIM:
        tile = tl.load(pointers, mask=mask, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def attend_keys(
    queries, best, total, sum_values, keys_ptr, values_ptr, pages_ptr, first, last, floors, limits,
    scale, soft_cap, key_block, key_slot, value_block, value_slot,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, FLOORED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys ``first`` to ``last``, of which a query sees those below its
    ``limits``, with FLOORED from its ``floors`` on; without MASKED it sees all, and they are a
    multiple of KEYS. CAPPED: ``scale`` has the logarithm's base left out.
    """
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        tile = load_tile(
            keys_ptr, pages_ptr, keys, last, key_block, key_slot,
            HEAD_DIM, DIM, BLOCK_SIZE, MASKED,
        )  # fmt: skip
        tile = tl.trans(tile.to(queries.dtype))
        scores = tl.dot(queries, tile, input_precision="ieee") * scale  # [rows, keys]
        if CAPPED:
            # tanh x = 2 / (1 + e^-2x) - 1; scores are logarithms to base 2 from here on.
            bent = 2.0 / (1.0 + tl.exp2(scores / soft_cap * -2.8853900817779268)) - 1.0
            scores = bent * (soft_cap * 1.4426950408889634)
        if MASKED:
            seen = (keys[None, :] < limits[:, None]) & (keys < last)[None, :]
            if FLOORED:
                seen = seen & (keys[None, :] >= floors[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, axis=1))
        # A query that has seen nothing yet: minus infinity less itself would not be a number.
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(scores - base[:, None])
        shrunk = tl.exp2(best - base)
        total = total * shrunk + tl.sum(weights, axis=1)
        tile = load_tile(
            values_ptr, pages_ptr, keys, last, value_block, value_slot,
            HEAD_DIM, DIM, BLOCK_SIZE, MASKED,
        )  # fmt: skip
        tile = tile.to(queries.dtype)
        sum_values = sum_values * shrunk[:, None]
        sum_values = tl.dot(
            weights.to(queries.dtype), tile, sum_values, input_precision="ieee"
        )  # [rows, dims]
        best = peak
    return best, total, sum_values


@triton.jit
def queries_of_tile(
    query_start_ptr, rows, tokens, tile,
    QUERIES: tl.constexpr, ONE_QUERY: tl.constexpr, PREFIX: tl.constexpr,
):  # fmt: skip
    """A tile's row, the row's first query and number of queries, and how many precede the tile."""
    row = tile * 0
    first_query = row
    if PREFIX:
        queries = tokens + row
        ahead = tile * QUERIES
    elif ONE_QUERY:
        row = tile
        first_query = row
        queries = row * 0 + 1
        ahead = row * 0
    else:
        row = row_of_tile(query_start_ptr, rows, tile, QUERIES)
        first_query = tl.load(query_start_ptr + row)
        queries = tl.load(query_start_ptr + row + 1) - first_query
        ahead = (tile - (first_query // QUERIES + row)) * QUERIES
    return row, first_query, queries, ahead


@triton.jit
def keys_of_tile(
    kv_length_ptr, positions_ptr, shared_ptr, row, first_query, queries, ahead, query, span,
    QUERIES: tl.constexpr, SHARES: tl.constexpr, PREFIX: tl.constexpr,
    WINDOWED: tl.constexpr, CHUNKED: tl.constexpr,
):  # fmt: skip
    """The keys that a tile attends to.

    Returns the first of them, the end of those that all of its queries see, the end of all, and
    for each ``query`` the first of those that it sees, and their end. Keys are counted from the
    first that a row's pages have, which may lie behind the sequence's first; positions are not.
    """
    begin = row * 0
    if SHARES or PREFIX:
        begin += tl.load(shared_ptr)
    if PREFIX:
        sure = begin
        end = begin
        limits = begin + query * 0
        floors = query * 0
        begin = row * 0
    else:
        length = tl.load(kv_length_ptr + row)
        limits = length - queries + query + 1
        sure = length - queries + ahead + 1
        end = tl.minimum(length, sure + QUERIES - 1)
        floors = query * 0
        if WINDOWED:
            floors = limits - span
            begin = tl.maximum(begin, sure - span)
        if CHUNKED:
            positions = tl.load(positions_ptr + first_query + query, mask=query < queries, other=0)
            floors = limits - 1 - positions % span
            begin = tl.maximum(
                begin, sure - 1 - tl.load(positions_ptr + first_query + ahead) % span
            )
        if (WINDOWED or CHUNKED) and QUERIES > 1:  # a later query may not see the first keys
            sure = begin
    return begin, sure, end, floors, limits


@triton.jit
def part_of_keys(begin, sure, end, split, splits, KEYS: tl.constexpr):
    """Range of a tile's keys that one part has: whole tiles of keys, ``sure`` between two."""
    each = (tl.maximum(end - begin, 0) + KEYS - 1) // KEYS
    each = (each + splits - 1) // splits * KEYS
    begin += split * each
    end = tl.minimum(end, begin + each)
    sure = begin + tl.maximum(tl.minimum(sure, end) - begin, 0) // KEYS * KEYS
    return begin, sure, end


@triton.jit(do_not_specialize=["rows", "tokens", "splits", "parts", "first_part", "span"])
def attend_kernel(
    queries_ptr, out_ptr, part_values_ptr, part_sums_ptr, keys_ptr, values_ptr,
    query_start_ptr, kv_length_ptr, page_indptr_ptr, page_indices_ptr, positions_ptr, shared_ptr,
    sinks_ptr,
    rows, tokens, splits, parts, first_part, scale, value_scale, span, soft_cap,
    query_stride, out_stride,
    key_block, key_slot, key_head, value_block, value_slot, value_head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WHOLE: tl.constexpr,
    ONE_QUERY: tl.constexpr, SHARES: tl.constexpr, PREFIX: tl.constexpr,
    WINDOWED: tl.constexpr, CHUNKED: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a tile of queries, key and value head, and part of the keys.

    WINDOWED: a query sees the last ``span`` keys; CHUNKED: those of its own chunk of ``span``
    positions.

    PREFIX: every token's queries over the first ``shared`` keys of row 0. SHARES: every row over
    what comes after those. WHOLE: the result goes to ``out``, else it is one of ``parts``, of which
    this launch's begin at ``first_part``.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    wait_for_inputs(CHAINED)
    row, first_query, queries, ahead = queries_of_tile(
        query_start_ptr, rows, tokens, tl.program_id(0), QUERIES, ONE_QUERY, PREFIX
    )
    if ahead < queries:
        member = tl.arange(0, ROWS)
        query = ahead + member // GROUP  # of this row
        begin, sure, end, floors, limits = keys_of_tile(
            kv_length_ptr, positions_ptr, shared_ptr, row, first_query, queries, ahead, query, span,
            1 if ONE_QUERY else QUERIES, SHARES, PREFIX, WINDOWED, CHUNKED,
        )  # fmt: skip
        begin, sure, end = part_of_keys(begin, sure, end, split, splits, KEYS)

        token = first_query + query
        head = kv_head * GROUP + member % GROUP
        live = (query < queries) & (member < QUERIES * GROUP)
        dims = tl.arange(0, DIM)
        mask = live[:, None] & (dims < HEAD_DIM)[None, :]
        at = token.to(tl.int64) * query_stride + head * HEAD_DIM
        tile_queries = tl.load(queries_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0)

        pages_ptr = page_indices_ptr + tl.load(page_indptr_ptr + row)
        head_keys = keys_ptr + kv_head.to(tl.int64) * key_head
        head_values = values_ptr + kv_head.to(tl.int64) * value_head
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        if SINKS and not PREFIX:  # noqa: SIM102 - one is known when it is compiled, one when it runs
            if split == 0:
                sinks = tl.load(sinks_ptr + head, mask=live, other=0.0)
                best = sinks.to(tl.float32) * 1.4426950408889634
                total += 1.0
        sum_values = tl.zeros([ROWS, DIM], tl.float32)
        best, total, sum_values = attend_keys(
            tile_queries, best, total, sum_values, head_keys, head_values, pages_ptr,
            begin, sure, floors, limits, scale, soft_cap,
            key_block, key_slot, value_block, value_slot,
            HEAD_DIM, DIM, BLOCK_SIZE, KEYS, False, WINDOWED or CHUNKED, CAPPED,
        )  # fmt: skip
        best, total, sum_values = attend_keys(
            tile_queries, best, total, sum_values, head_keys, head_values, pages_ptr,
            sure, end, floors, limits, scale, soft_cap,
            key_block, key_slot, value_block, value_slot,
            HEAD_DIM, DIM, BLOCK_SIZE, KEYS, True, WINDOWED or CHUNKED, CAPPED,
        )  # fmt: skip

        total = tl.where(total == 0.0, 1.0, total)  # of no keys: a sum of minus infinity, and zeros
        result = sum_values / total[:, None] * value_scale
        if WHOLE:
            at = token.to(tl.int64) * out_stride + head * HEAD_DIM
            pointers = out_ptr + at[:, None] + dims[None, :]
            tl.store(pointers, result.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            HEADS = tl.num_programs(1) * GROUP
            part = (token.to(tl.int64) * HEADS + head) * parts + first_part + split
            tl.store(part_sums_ptr + part, best + tl.log2(total), mask=live)
            # Nothing is read of a part without a sum; the first has one where there is a sink.
            if SINKS or end > begin:
                pointers = part_values_ptr + (part * HEAD_DIM)[:, None] + dims[None, :]
                tl.store(pointers, result, mask=mask)


def attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: Pages,
    out: torch.Tensor,
    *,
    rows: int,
    one_query: bool,
    scale: float,
    tiling: Tiling,
    parts: Parts | None = None,
    shared: torch.Tensor | None = None,
    prefix: Tiling | None = None,
    window: int | None = None,
    chunk: int | None = None,
    positions: torch.Tensor | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    value_scale: float = 1.0,
) -> None:
    """Attend the queries of all rows over their pages, causally, on the current stream.

    Query i of a row sees the keys up to its own position, kv_length - queries of the row + i. A
    row without queries is skipped, and so are tokens that no row has: what is in ``out`` for them
    has no meaning.

    Args:
        queries: [tokens, heads, head_dim], float32, bfloat16 or float16; a token's elements
            together, and tokens at any distance.
        keys: [blocks, block_size, kv heads, head_dim], of the queries' type or float8_e4m3fn.
        values: Like ``keys``.
        pages: The pages of the rows; read when the kernel runs.
        out: Like ``queries``, written.
        rows: Rows of the launch.
        one_query: Row i has query token i and no other: ``query_start`` is not read.
        scale: Multiplies the scores.
        tiling: How the launch is cut; :func:`pyengine.kernels.attention.tiling.tiling_for`.
        parts: Where the keys are cut: memory for it, which every launch may use.
        shared: int32 [1], on the device: the keys that all rows share, which lie in full pages and
            before every row's queries. They are attended once for all.
        prefix: How that launch is cut; given with ``shared``.
        window: Keys that a query sees, the last of them its own; None is all before it. Not with
            ``shared``.
        chunk: Positions in a chunk; a query sees only keys of its own. Instead of ``window``.
        positions: int32 [tokens or more], of the queries; given with ``chunk``.
        soft_cap: Scores become ``soft_cap * tanh(score / soft_cap)``.
        sinks: float32 [heads], logits that take a share of the softmax and have no value.
        value_scale: Multiplies the values; ``scale`` has that of the keys in it.
    """
    if window is not None or chunk is not None:
        if shared is not None:
            raise ValueError("a shared prefix is not attended through a window or a chunk")
        if window is not None and chunk is not None:
            raise ValueError("queries see a window or a chunk, not both")
    if chunk is not None and positions is None:
        raise ValueError("the chunk of a query is told by its position")
    tokens, heads, head_dim = queries.shape
    if tokens == 0 or rows == 0:
        return
    group = heads // keys.shape[2]
    count = tiling.splits + (prefix.splits if prefix is not None else 0)
    dim = max(16, power_of_two(head_dim))
    parts = room_for(parts, out, count)

    def launch(cut: Tiling, tiles: int, first_part: int, is_prefix: bool) -> None:
        attend_kernel[(tiles, keys.shape[2], cut.splits)](
            queries, out, parts.values, parts.sums, keys, values,
            pages.query_start, pages.kv_length, pages.page_indptr, pages.page_indices,
            pages.kv_length if positions is None else positions,
            pages.kv_length if shared is None else shared,
            parts.sums if sinks is None else sinks,
            rows, tokens, cut.splits, count, first_part,
            scale * 1.4426950408889634 if soft_cap is None else scale, float(value_scale),
            window or chunk or 0, 1.0 if soft_cap is None else soft_cap,
            queries.stride(0), out.stride(0), *keys.stride()[:3], *values.stride()[:3],
            GROUP=group, HEAD_DIM=head_dim, DIM=dim, BLOCK_SIZE=keys.shape[1],
            ROWS=cut.rows, KEYS=cut.keys, WHOLE=count == 1,
            ONE_QUERY=one_query and not is_prefix, SHARES=shared is not None, PREFIX=is_prefix,
            WINDOWED=window is not None, CHUNKED=chunk is not None,
            CAPPED=soft_cap is not None, SINKS=sinks is not None,
            num_warps=cut.warps, num_stages=cut.stages, enable_fp_fusion=True,
            **chained(queries.device),
        )  # fmt: skip

    launch(tiling, rows if one_query else tokens // (tiling.rows // group) + rows, 0, False)
    if prefix is not None:
        launch(prefix, -(-tokens // (prefix.rows // group)), tiling.splits, True)
    if count > 1:
        merge(out, parts, count)
