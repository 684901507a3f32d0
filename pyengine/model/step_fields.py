"""The names of a step's fields, for classes that hold a view of each: numpy arrays, torch tensors.

``rust/scheduler/src/step/buffers.rs`` declares each field with its type and place, and
``kernels/cpu/src/sampler/sampling_row.rs`` the fields of a sampling row. A test compares the names
here with :meth:`pyengine._core.StepLayout.fields`.
"""

from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pyengine._core import sampling_row
from pyengine.sampling import SamplingParams, pack_sampling

SAMPLING_ROW: "np.dtype[np.void]" = np.dtype(cast("Any", sampling_row()))
"""A row of ``sampling``: its rules by their names in :class:`pyengine.SamplingParams`."""


def sampling_rows(count: int, **rules: Any) -> NDArray[np.void]:
    """So many rows by the names of their rules, each one value or one a row; the others are off."""
    neutral = np.frombuffer(pack_sampling(SamplingParams(), seed=0), SAMPLING_ROW)
    rows = np.repeat(neutral, count)
    for name, values in rules.items():
        rows[name] = values
    return rows


Array = TypeVar("Array")


class PageTable(NamedTuple, Generic[Array]):
    """One of a step's page tables: where the layers that it is for have their keys and values.

    Attributes:
        slot_mapping: int32 [tokens], where each token's go: ``page * block_size + offset``.
        kv_length: int32 [rows], tokens of the row from the beginning of its first page on.
        page_indptr: int32 [rows + 1], where the pages of each row begin in ``page_indices``.
    """

    slot_mapping: Array
    kv_length: Array
    page_indptr: Array


class StepFields(Generic[Array]):
    """A view of each field of a step, and of its results.

    ``slot_mapping``, ``kv_length`` and ``page_indptr`` are those of the first page table, which are
    all that a step of a model without windows has; ``page_indices`` are those of all, and so are
    the fields of ``all_tables``, table after table.

    A *row* is one sequence in the step; it brings one or more consecutive tokens. A *sampling row*
    is a row whose last tokens are followed by sampled ones; a *logits row* is one of those.
    """

    page_tables: list[PageTable[Array]]
    all_tables: PageTable[Array]
    header: Array
    token_ids: Array
    positions: Array
    slot_mapping: Array
    query_start: Array
    kv_length: Array
    page_indptr: Array
    row_sequence: Array
    assumed_drafts: Array
    sample_rows: Array
    sample_sequence: Array
    sampling: Array
    sample_position: Array
    device_drafts: Array
    logit_start: Array
    logit_row: Array
    logit_token: Array
    mask_row: Array
    feed_token: Array
    feed_sequence: Array
    logprobs: Array
    page_indices: Array
    pool_token: Array
    pool_start: Array
    prompt_token: Array
    prompt_target: Array
    penalty_start: Array
    penalty_token: Array
    penalty_factor: Array
    penalty_add: Array
    mask: Array
    sampled_counts: Array
    sampled_tokens: Array
    sampled_logprobs: Array
    top_tokens: Array
    top_logprobs: Array
    pooled: Array
    prompt_logprobs: Array
    prompt_top_tokens: Array
    prompt_top_logprobs: Array
    device_times: Array

    def split_tables(self, tables: int) -> None:
        """Cut the fields of page tables, of which there are so many, into those of each."""
        fields: list[Any] = [self.slot_mapping, self.kv_length, self.page_indptr]
        self.all_tables = PageTable(*fields)
        cuts = [
            [field[at * size : (at + 1) * size] for at in range(tables)]
            for field in fields
            for size in [len(field) // tables]
        ]
        self.page_tables = [PageTable(*each) for each in zip(*cuts, strict=True)]
        self.slot_mapping, self.kv_length, self.page_indptr = self.page_tables[0]
