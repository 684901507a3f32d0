"""Pages that all rows of a step share: which they are, and when to attend to them once for all."""

import numpy as np

from pyengine.model.batch import StepBuffers

LAUNCH_BYTES = 12_000_000
"""Bytes that a GPU reads in the time of one more launch in a layer: 3 us at 4 TB/s."""


def shared_tokens(host: StepBuffers, block_size: int) -> int:
    """Tokens in full pages that begin every row and come before every row's queries.

    A row has a page that is another's only behind pages that say the same as the other's: what is
    stored for a token depends on all tokens before it. So the last page that all rows share is
    found by bisection. O(rows), times the logarithm of the pages where the first ones are the same;
    all loops over rows are numpy's.
    """
    rows = host.num_rows
    if rows < 2:
        return 0
    starts, indices = host.page_indptr[:rows], host.page_indices
    first = indices[starts]
    if (first != first[0]).any():
        return 0
    queries = np.diff(host.query_start[: rows + 1])
    most = int((host.kv_length[:rows] - queries).min()) // block_size
    shared = min(most, 1)
    while shared < most:
        middle = (shared + most + 1) // 2
        pages = indices[starts + (middle - 1)]
        if (pages == pages[0]).all():
            shared = middle
        else:
            most = middle - 1
    return shared * block_size


def cascade_pays(
    rows: int, tokens: int, shared: int, *, token_bytes: int, part_bytes: int, parts: int
) -> bool:
    """Whether to attend to a shared prefix once, in a launch of its own, in every layer.

    It saves the other rows' reading of the prefix, and costs two launches (of the prefix, and of
    the merge) and what is written and read to merge. The saving counts half: rows that run at the
    same time find some of the prefix in the cache of the GPU. What rows have of their own is read
    either way.

    Args:
        rows: Rows that share it.
        tokens: Query tokens of all rows.
        shared: Tokens of the prefix.
        token_bytes: The bytes of a token's keys and values in one layer.
        part_bytes: The bytes of what a token's query heads give in one part of the keys.
        parts: Parts to merge.
    """
    saved = (rows - 1) * shared * token_bytes
    return saved > 2 * (2 * LAUNCH_BYTES + 2 * tokens * part_bytes * parts)
