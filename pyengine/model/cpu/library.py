"""A linear layer by torch, where Rust has no kernel: bfloat16, and processors without AVX2."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.parts import Buffer
from pyengine.model.dtypes import bits


class LibraryLinear:
    """x W^T + b by torch, which no program can record."""

    def __init__(self, weight: NDArray[Any], bias: NDArray[Any] | None) -> None:
        """Take ``weight`` [out, in] and ``bias`` [out], of one type.

        Raises:
            ModelLoadError: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise ModelLoadError(
                f"products in {weight.dtype} on this processor need torch: "
                "pip install 'pyengine[torch]', or take 'dtype' float32"
            ) from error
        self._torch = torch
        self._transposed = self._tensor(weight).t()
        self._bias = None if bias is None else self._tensor(bias)

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        inputs, outputs = self._tensor(x.tensor[:rows]), self._tensor(out.tensor[:rows])
        with self._torch.inference_mode():
            if self._bias is None:
                self._torch.mm(inputs, self._transposed, out=outputs)
            else:
                self._torch.addmm(self._bias, inputs, self._transposed, out=outputs)

    def _tensor(self, array: NDArray[Any]) -> Any:
        tensor = self._torch.from_numpy(bits(array))
        return tensor if array.dtype == np.float32 else tensor.view(self._torch.bfloat16)
