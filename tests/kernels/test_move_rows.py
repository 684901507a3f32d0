"""Rows that follow drafts in flight go back by those that were wrong."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import StepHeader
from pyengine.kernels.move_rows import BLOCK, move_rows, move_rows_reference
from tests.kernels.backends import DEVICE

PAGE = 4
SPARE = 3
"""Rows and tokens that a step has room for beside its own."""


class Row(NamedTuple):
    """A row: tokens before it if no draft is right, its own, what it assumes and what was right."""

    before: int
    own: int
    assumed: int
    right: int
    samples: bool


ROWS = st.lists(
    st.builds(
        Row,
        st.integers(0, 30),
        st.integers(1, BLOCK + 5),
        st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)


def laid_out(rows: list[Row], taken: list[int], tables: int, offset: int) -> list[Any]:
    """The fields from ``query_start`` on of a step whose rows take so many drafts for right."""
    max_rows, max_tokens = len(rows) + SPARE, sum(row.own for row in rows) + SPARE
    ends = np.cumsum([row.own for row in rows])
    starts = ends - [row.own for row in rows]
    positions = np.full(max_tokens, -5, np.int32)
    slot_mapping = np.full((tables, max_tokens), -5, np.int32)
    kv_length = np.full((tables, max_rows), -5, np.int32)
    page_indptr = np.zeros((tables, max_rows + 1), np.int32)
    pages: list[int] = []
    for table in range(tables):
        for at, (row, drafts) in enumerate(zip(rows, taken, strict=True)):
            places = row.before + drafts + np.arange(row.own)
            # Pages are there for all drafts.
            held = -(-(row.before + row.assumed + row.own) // PAGE)
            held_pages = 1000 * (table + 1) + 50 * at + np.arange(held)
            page_indptr[table, at : at + 2] = len(pages), len(pages) + held
            pages += held_pages.tolist()
            own = slice(starts[at], ends[at])
            slot_mapping[table, own] = held_pages[places // PAGE] * PAGE + places % PAGE
            kv_length[table, at] = places[-1] + 1
            # A place in a table of angles, where a sequence begins anywhere.
            positions[own] = offset + places
    sampling = [at for at, row in enumerate(rows) if row.samples]
    spare = [0] * (max_rows - len(sampling))
    return [
        np.array([0, *ends, *[0] * SPARE], np.int32),
        positions,
        slot_mapping.ravel(),
        kv_length.ravel(),
        page_indptr.ravel(),
        np.array(pages, np.int32),
        np.array([*sampling, *spare], np.int32),
        np.array([*(kv_length[0, at] for at in sampling), *spare], np.int64),
    ]


@pytest.mark.parametrize("kernel", [move_rows, move_rows_reference])
@settings(max_examples=20, deadline=None)
@given(rows=ROWS, tables=st.integers(1, 3), offset=st.integers(0, 9))
def test_a_row_is_as_if_the_drafts_had_been_known(
    rows: list[Row], tables: int, offset: int, kernel: object
) -> None:
    """And rows that assume none, or less than is said to be right, stay where they are."""
    max_rows = len(rows) + SPARE
    slots = np.random.default_rng(len(rows)).permutation(max_rows).astype(np.int32)
    header = np.zeros(24, np.int64)
    header[StepHeader.NUM_SAMPLED] = sum(row.samples for row in rows)
    assumed, right = np.zeros(max_rows, np.int32), np.full(max_rows, -1, np.int32)
    for at, row in enumerate(rows):
        assumed[at], right[slots[at]] = row.assumed, row.right
    before = [header, assumed, slots, right]
    planned = laid_out(rows, [row.assumed for row in rows], tables, offset)
    step = [torch.from_numpy(each.copy()).to(DEVICE) for each in (*before, *planned)]
    kernel(*step, rows=len(rows), block_size=PAGE)  # type: ignore[operator]
    known = laid_out(rows, [min(row.assumed, row.right) for row in rows], tables, offset)
    for found, wanted in zip(step, (*before, *known), strict=True):
        assert found.tolist() == wanted.tolist()
