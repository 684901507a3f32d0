"""Where the rows of a matrix come from: an adapter finds the layers that it changes by that."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Origin:
    """The rows of one part of a matrix, in the tensor that they were read from.

    Attributes:
        name: The name of the tensor, in the model's dense checkpoint.
        shape: Outputs and inputs of the whole tensor.
        rows: Which of its rows each row is: [rows].
        columns: Which of its columns the columns are.
    """

    name: str
    shape: tuple[int, int]
    rows: NDArray[np.intp]
    columns: slice

    @property
    def module(self) -> str:
        """The name of the linear layer whose weight the tensor is."""
        return self.name.removesuffix(".T").removesuffix(".weight")

    def of(self, rows: slice | NDArray[np.intp]) -> "Origin":
        """Returns the origin of some of the rows, or of all in another order."""
        return Origin(self.name, self.shape, self.rows[rows], self.columns)
