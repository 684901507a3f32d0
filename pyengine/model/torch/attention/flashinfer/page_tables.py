"""Page tables as FlashInfer takes them, made from a step's arrays on the host by numpy.

A row's pages are ``indices[indptr[row] : indptr[row + 1]]`` and hold page_size tokens each but the
last, which holds ``last_page_len``. In a graph the launch is for a fixed number of query tokens:
those that pad it are one more row, without keys::

    rows          a   b   + +  |  the tokens that no row has
    qo_indptr     0   2   3 3 3   6
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyengine.model.batch import StepBuffers

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class PageTables:
    """The arrays that a plan is made from; int32 each.

    Attributes:
        query_start: [rows + 1], FlashInfer's ``qo_indptr``.
        indptr: [rows + 1].
        kv_length: [rows], keys of each row.
        last_page_len: [rows]; 0 where a row has no pages.
    """

    query_start: Ints
    indptr: Ints
    kv_length: Ints
    last_page_len: Ints


def last_page_len(kv_length: Ints, page_size: int) -> Ints:
    """Tokens in the last page of each row: int32 [rows], from 1 to ``page_size``; 0 of 0.

    O(rows).
    """
    return np.where(kv_length > 0, (kv_length - 1) % page_size + 1, 0).astype(np.int32)


def page_tables(
    host: StepBuffers, rows: tuple[int, int], tokens: int | None, page_size: int, table: int = 0
) -> PageTables:
    """The page tables of some rows, O(rows).

    Args:
        host: The step, padded to as many rows.
        rows: The first of them, and the end.
        tokens: Query tokens of a launch of fixed size: one more row has those that pad it. None:
            the launch is as long as the step.
        page_size: Tokens in a page.
        table: Which of the step's page tables; indices are those of all tables.
    """
    first, end = rows
    own = host.page_tables[table]
    query_start, indptr = host.query_start[first : end + 1], own.page_indptr[first : end + 1]
    lengths = own.kv_length[first:end]
    if first:
        query_start = query_start - query_start[0]
    if tokens is not None:
        query_start = np.append(query_start, np.int32(tokens))
        indptr, lengths = np.append(indptr, indptr[-1]), np.append(lengths, np.int32(0))
    return PageTables(query_start, indptr, lengths, last_page_len(lengths, page_size))
