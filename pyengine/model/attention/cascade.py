"""Pages that all rows of a step share: which they are, and when to attend to them once for all."""

import numpy as np

from pyengine.model.batch import StepBuffers

LAUNCH_BYTES = 12_000_000
"""What a GPU reads in the time that one more launch in a layer takes: 3 us at 4 TB/s."""

_FIRST_LOOK = 16


def decodes(host: StepBuffers) -> bool:
    """Whether every row of the step has one query token."""
    return host.num_rows == host.num_tokens and int(host.header[5]) <= 1


def shared_tokens(host: StepBuffers, block_size: int) -> int:
    """Tokens in full pages that begin every row and come before every row's queries.

    Where the first pages differ, which is usual, O(rows); else O(rows * shared pages). All loops
    are numpy's.
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
    count, look = 0, _FIRST_LOOK
    while count < most:
        look = min(look, most - count)
        pages = indices[starts[:, None] + np.arange(count, count + look, dtype=np.int32)]
        same = (pages == pages[0]).all(axis=0)  # [look]
        if not same.all():
            return (count + int(same.argmin())) * block_size
        count, look = count + look, 4 * look
    return count * block_size


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
        token_bytes: Of a token's keys and values in one layer.
        part_bytes: Of what a token's query heads give in one part of the keys.
        parts: Parts to merge.
    """
    saved = (rows - 1) * shared * token_bytes
    return saved > 2 * (2 * LAUNCH_BYTES + 2 * tokens * part_bytes * parts)
