"""Weights on their way to a torch device: several threads read, convert and copy at once.

A disk, and the copies to a GPU, are faster in parallel. Weights that are views of a mapped file are
read by the thread that copies them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.model.dtypes import bits
from pyengine.model.weights.matrix import Matrix

READERS = 8
AHEAD = 2 * READERS
"""Parts of matrices that may be under way: so progress, which counts what is asked for, is true."""


class Transfer:
    """Makes tensors of one device and type; they are filled by the end of :meth:`wait`.

    One thread at a time, after :meth:`wait` as before.

    Attributes:
        nbytes: The size in bytes of all tensors made so far.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()
        self.nbytes = 0

    def vector(self, values: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        """``values``, filled at once; of ``dtype`` or that of all."""
        out = _tensor(np.array(values)).to(self._device, dtype or self._dtype)
        self.nbytes += out.nbytes
        return out

    def matrix(self, weight: Matrix) -> torch.Tensor:
        """The numbers that ``weight`` means, [out, in]."""
        out = torch.empty(weight.shape, dtype=self._dtype, device=self._device)
        self._fill(out, weight)
        return out

    def stored(self, arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
        """``arrays`` of one type and width, as they are, one below the other."""
        shape = sum(map(len, arrays)), *arrays[0].shape[1:]
        out = torch.empty(shape, dtype=_tensor(arrays[0][:0]).dtype, device=self._device)
        self.nbytes += out.nbytes
        if not out.is_meta:
            start = 0
            for array in arrays:
                self._submit(out[start : start + len(array)], partial(np.ascontiguousarray, array))
                start += len(array)
        return out

    def matrices(self, weights: Sequence[Matrix]) -> torch.Tensor:
        """The numbers that ``weights`` of one shape mean, [matrices, out, in]."""
        shape = len(weights), *weights[0].shape
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        for each, weight in zip(out, weights, strict=True):
            self._fill(each, weight)
        return out

    def _fill(self, out: torch.Tensor, weight: Matrix) -> None:
        self.nbytes += out.nbytes
        if out.is_meta:
            return
        start = 0
        for part in weight.parts:
            stop = start + part.shape[0]
            self._submit(out[start:stop], part.dequantized)
            start = stop

    def wait(self) -> None:
        """Return when all tensors are filled, and give the threads back.

        Raises:
            Exception: A part could not be read or copied.
        """
        pool, self._pool = self._pool, None
        try:
            while self._under_way:
                self._under_way.popleft().result()
        finally:
            self._under_way.clear()
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _submit(self, out: torch.Tensor, read: Callable[[], NDArray[Any]]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(READERS, "pyengine-weights")
        while len(self._under_way) >= AHEAD:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(self._copy, out, read))

    def _copy(self, out: torch.Tensor, read: Callable[[], NDArray[Any]]) -> None:
        with torch.inference_mode(out.is_inference()):
            numbers = _tensor(read())
            if self._device.type != "cuda":
                out.copy_(numbers)
                return
            # A stream for each copy: those of several threads go on beside each other.
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                out.copy_(numbers)
            stream.synchronize()


_OTHERS = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
}
"""Types that numpy has from elsewhere."""


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """``array`` as torch sees it; shares its memory."""
    if not array.flags.writeable:
        # Broadcast arrays, for instance: torch warns of memory that it must not write to.
        array = array.copy()
    tensor = torch.from_numpy(bits(array))
    given = _OTHERS.get(array.dtype)
    return tensor if given is None else tensor.view(given)
