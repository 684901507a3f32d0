"""Rows that were laid out behind drafts that nothing had verified yet go where they belong.

Bytes moved: some tens for each row, and 16 for each token of a row that is moved, for every page
table; there is a program for each row.
"""

import torch

from pyengine._core import StepHeader
from pyengine.kernels.language import tl, triton

BLOCK = 16
"""Tokens of a row that its program moves at a time."""


@triton.jit(do_not_specialize=["block_size", "max_tokens", "max_rows"])
def move_rows_kernel(
    header_ptr, assumed_ptr, row_sequence_ptr, right_ptr, query_start_ptr, positions_ptr,
    slot_mapping_ptr, kv_length_ptr, page_indptr_ptr, page_indices_ptr, sample_rows_ptr,
    sample_position_ptr, block_size, max_tokens, max_rows,
    TABLES: tl.constexpr, NUM_SAMPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program n moves row n, and the sample position of sampling row n, which may be another's."""
    row = tl.program_id(0)
    assumed = tl.load(assumed_ptr + row)
    right = tl.load(right_ptr + tl.load(row_sequence_ptr + row))
    back = tl.maximum(assumed - right, 0)
    if (assumed > 0) & (back > 0):
        start, end = tl.load(query_start_ptr + row), tl.load(query_start_ptr + row + 1)
        for table in tl.static_range(TABLES):
            length = tl.load(kv_length_ptr + table * max_rows + row) - back
            pages = page_indices_ptr + tl.load(page_indptr_ptr + table * (max_rows + 1) + row)
            for first in range(start, end, BLOCK):
                token = first + tl.arange(0, BLOCK)
                place = length - end + token
                page = tl.load(pages + place // block_size, mask=token < end, other=0)
                slots = slot_mapping_ptr + table * max_tokens + token
                tl.store(slots, page * block_size + place % block_size, mask=token < end)
            tl.store(kv_length_ptr + table * max_rows + row, length)
        for first in range(start, end, BLOCK):
            token = first + tl.arange(0, BLOCK)
            position = tl.load(positions_ptr + token, mask=token < end, other=0)
            tl.store(positions_ptr + token, position - back, mask=token < end)

    if row < tl.load(header_ptr + NUM_SAMPLED):
        sampled = tl.load(sample_rows_ptr + row)
        assumed = tl.load(assumed_ptr + sampled)
        if assumed > 0:
            right = tl.load(right_ptr + tl.load(row_sequence_ptr + sampled))
            position = tl.load(sample_position_ptr + row)
            tl.store(sample_position_ptr + row, position - tl.maximum(assumed - right, 0))


def move_rows(
    header: torch.Tensor,
    assumed_drafts: torch.Tensor,
    row_sequence: torch.Tensor,
    right_drafts: torch.Tensor,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_length: torch.Tensor,
    page_indptr: torch.Tensor,
    page_indices: torch.Tensor,
    sample_rows: torch.Tensor,
    sample_position: torch.Tensor,
    *,
    rows: int,
    block_size: int,
) -> None:
    """Move each row of ``assumed_drafts`` back by those that were wrong.

    Queues one kernel on the current stream, behind the copy of the step and the verification of the
    step before. All but ``right_drafts`` are fields of the step on the device, the page tables'
    those of all tables.

    Args:
        header: int64 [24], the step's; see :class:`pyengine._core.StepHeader`.
        assumed_drafts: int32 [max rows]: drafts that a row's places take for right; 0: it stays.
        row_sequence: int32 [max rows], slots of the sequence table.
        right_drafts: int32 by slot: how many drafts of the sequence's row before were right. Where
            it is more than was assumed, as a step that failed may leave it, the row stays.
        query_start: int32 [max rows + 1].
        positions: int32 [max tokens], moved; a place in a table of angles, so no slot is made of
            it.
        slot_mapping: int32 [tables * max tokens], written anew.
        kv_length: int32 [tables * max rows], moved.
        page_indptr: int32 [tables * (max rows + 1)]; with ``page_indices`` they cover the row as it
            was laid out.
        page_indices: int32.
        sample_rows: int32 [max rows].
        sample_position: int64 [max rows], moved.
        rows: Of the step.
        block_size: Tokens of a page.
    """
    if rows:
        # One warp: no thread of a program may write what another has still to read.
        move_rows_kernel[(rows,)](
            header, assumed_drafts, row_sequence, right_drafts, query_start, positions,
            slot_mapping, kv_length, page_indptr, page_indices, sample_rows, sample_position,
            block_size, len(positions), len(row_sequence),
            TABLES=len(kv_length) // len(row_sequence), NUM_SAMPLED=StepHeader.NUM_SAMPLED,
            BLOCK=BLOCK, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip


def move_rows_reference(
    header: torch.Tensor,
    assumed_drafts: torch.Tensor,
    row_sequence: torch.Tensor,
    right_drafts: torch.Tensor,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_length: torch.Tensor,
    page_indptr: torch.Tensor,
    page_indices: torch.Tensor,
    sample_rows: torch.Tensor,
    sample_position: torch.Tensor,
    *,
    rows: int,
    block_size: int,
) -> None:
    """As :func:`move_rows`, in torch; reads the step on the CPU, so it waits for the device."""
    max_tokens, max_rows = len(positions), len(row_sequence)
    assumed = assumed_drafts[:rows]
    right = right_drafts[row_sequence[:rows].long()]
    backs = (assumed - right).clamp_min(0).where(assumed > 0, 0).tolist()
    starts = query_start.tolist()
    for row, back in enumerate(backs):
        start, end = starts[row : row + 2]
        positions[start:end] -= back
        for table in range(len(kv_length) // max_rows if back else 0):
            at = table * max_rows + row
            kv_length[at] -= back
            first = int(page_indptr[at + table])
            places = torch.arange(start - end, 0, device=positions.device) + kv_length[at]
            pages = page_indices[first + places // block_size]
            slots = slot_mapping[table * max_tokens :][start:end]
            slots.copy_(pages * block_size + places % block_size)
    for at in range(int(header[StepHeader.NUM_SAMPLED])):
        sample_position[at] -= backs[int(sample_rows[at])]
