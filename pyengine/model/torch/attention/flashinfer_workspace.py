"""How much memory FlashInfer needs to merge parts of the keys; too little fails a plan.

For a graph it cuts the keys whatever the step is like, and lays out a part for every tile of
queries that a step of the graph's size could have. Its kernels for Hopper never cut them.
"""

from pyengine.model.torch.attention.spec import AttentionShape

GRAPH_TOKENS = 512
"""Tokens, and rows, of the largest graph."""

RECOMMENDED_BYTES = 128 * 2**20
MOST_PROCESSORS = 192
"""No GPU has more; FlashInfer cuts into at most two parts for each."""


def parts_bytes(shape: AttentionShape, rows: int, tokens: int, tile: int) -> int:
    """Of a launch whose tiles hold ``tile`` query heads of query tokens: values and sums, float32.

    Args:
        shape: The heads.
        rows: Of the launch, the one that pads it counted in.
        tokens: Of the launch.
        tile: 16, 64 or 128, by how many queries a row can have.
    """
    group = shape.num_heads // shape.num_kv_heads
    tiles = -(-tokens * group // tile) + rows - 1
    parts = max(tiles, 2 * MOST_PROCESSORS // shape.num_kv_heads)
    return 4 * shape.num_heads * (shape.head_dim + 1) * parts * tile


def workspace_bytes(shape: AttentionShape, *, hopper: bool) -> int:
    """What every step and every graph of up to :data:`GRAPH_TOKENS` stays within.

    Args:
        shape: The heads and the largest step.
        hopper: The GPU has compute capability 9: prompts and drafts go to the kernels for it, if
            the cache is of the queries' type.
    """
    rows = min(GRAPH_TOKENS, shape.max_rows)
    tokens = min(GRAPH_TOKENS, shape.max_tokens)
    group = shape.num_heads // shape.num_kv_heads
    needed = [parts_bytes(shape, rows, rows, 16 if group <= 16 else 64 if group <= 64 else 128)]
    if not hopper or shape.kv_dtype != shape.dtype:
        needed += [parts_bytes(shape, rows + 1, tokens, tile) for tile in (16, 64, 128)]
    return max(RECOMMENDED_BYTES, *needed) + 2**20
