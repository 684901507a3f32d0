"""How much memory FlashInfer needs to merge parts of the keys; too little fails a plan.

Its kernels of FlashAttention 2 cut the keys of a graph whatever the step is like, and lay out a
part for every tile of queries that a step of the graph's size could have. Those of FlashAttention 3
never cut them.
"""

from pyengine.model.torch.attention.spec import AttentionSpec

GRAPH_TOKENS = 512
"""Tokens, and rows, of the largest graph."""

RECOMMENDED_BYTES = 128 * 2**20
MOST_PROCESSORS = 192
"""No GPU has more; FlashInfer cuts into at most two parts for each."""


def parts_bytes(spec: AttentionSpec, rows: int, tokens: int, tile: int) -> int:
    """Of a launch whose tiles hold ``tile`` query heads of query tokens: values and sums, float32.

    Args:
        spec: The heads.
        rows: The rows of the launch, the one that pads it counted in.
        tokens: The tokens of the launch.
        tile: 16, 64 or 128, by how many queries a row can have.
    """
    group = spec.num_heads // spec.num_kv_heads
    tiles = -(-tokens * group // tile) + rows - 1
    parts = max(tiles, 2 * MOST_PROCESSORS // spec.num_kv_heads)
    # Since 0.7 a tile counts by its tokens: it holds ``group`` query heads of each.
    return 4 * spec.num_heads * (spec.head_dim + 1) * -(-parts * tile // group)


def workspace_bytes(spec: AttentionSpec) -> int:
    """Bounds of every step and every graph of up to :data:`GRAPH_TOKENS`, for ``spec``'s heads and
    largest step.
    """
    rows = min(GRAPH_TOKENS, spec.max_rows)
    tokens = min(GRAPH_TOKENS, spec.max_tokens)
    needed = [parts_bytes(spec, rows, rows, 16)]
    needed += [parts_bytes(spec, rows + 1, tokens, tile) for tile in (16, 64, 128)]
    return max(RECOMMENDED_BYTES, *needed) + 2**20
