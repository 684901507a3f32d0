"""The names of a step's fields, for classes that hold a view of each: numpy arrays, torch tensors.

``rust/engine/src/scheduler/step/buffers.rs`` declares each field with its type and place, and
``kernels/cpu/src/sampler/sampling_row.rs`` the fields of a sampling row. A test compares the names
here with :meth:`pyengine._core.StepLayout.fields`.
"""

from typing import Any, Generic, TypeVar, cast

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


class StepFields(Generic[Array]):
    """A view of each field of a step.

    A *row* is one sequence in the step; it brings one or more consecutive tokens. A *sampling row*
    is a row whose last tokens are followed by sampled ones; a *logits row* is one of those.
    """

    header: Array
    token_ids: Array
    positions: Array
    slot_mapping: Array
    query_start: Array
    kv_length: Array
    page_indptr: Array
    row_sequence: Array
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
    penalty_start: Array
    penalty_token: Array
    penalty_factor: Array
    penalty_add: Array
    mask: Array
