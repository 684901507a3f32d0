"""A step's fields, for classes that hold a view of each: numpy arrays, torch tensors.

``rust/scheduler/src/step/buffers.rs`` declares each field with its type, length and meaning, and
``kernels/cpu/src/sampler/sampling_row.rs`` the fields of a sampling row.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pyengine._core import StepLayout, sampling_row
from pyengine.model.step_names import Array, StepNames
from pyengine.sampling import SamplingParams, pack_sampling

SAMPLING_ROW: "np.dtype[np.void]" = np.dtype(cast("Any", sampling_row()))
"""A row of ``sampling``: its rules by their names in :class:`pyengine.SamplingParams`."""


def sampling_rows(count: int, **rules: Any) -> NDArray[np.void]:
    """Makes ``count`` rows of rules by name, each one value or one a row; others are off."""
    neutral = np.frombuffer(pack_sampling(SamplingParams(), seed=0), SAMPLING_ROW)
    rows = np.repeat(neutral, count)
    for name, values in rules.items():
        rows[name] = values
    return rows


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


class StepFields(StepNames[Array]):
    """A view of each field of a step, and of its results, by the names of the declaration.

    ``slot_mapping``, ``kv_length`` and ``page_indptr`` are those of the first page table, which are
    all that a step of a model without windows has; ``page_indices`` are those of all, table
    after table.

    A *row* is one sequence in the step; it brings one or more consecutive tokens. A *sampling row*
    is a row whose last tokens are followed by sampled ones; a *logits row* is one of those.

    Attributes:
        page_tables: The fields of each page table.
    """

    page_tables: list[PageTable[Array]]

    def make_views(self, layout: StepLayout, view: Callable[[Any, int, int], Array]) -> None:
        """Make the view of every field, and of the fields of each page table.

        Args:
            layout: Where the fields are.
            view: Makes the view of bytes from the second to before the third argument as elements
                of the first, a numpy type by its name; of rows of :data:`SAMPLING_ROW`, that type.
        """
        widths = layout.widths()
        for name, (dtype, start, count) in layout.fields().items():
            array: Any = view(dtype, start, start + count * np.dtype(dtype).itemsize)
            if name in widths:
                array = array.reshape(-1, max(widths[name], 1))
            setattr(self, name, array)
        fields: list[Any] = [self.slot_mapping, self.kv_length, self.page_indptr]
        cuts = [
            [field[at * size : (at + 1) * size] for at in range(layout.tables)]
            for field in fields
            for size in [len(field) // layout.tables]
        ]
        self.page_tables = [PageTable(*each) for each in zip(*cuts, strict=True)]
        self.slot_mapping, self.kv_length, self.page_indptr = self.page_tables[0]
