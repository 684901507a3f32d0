"""Selects the kernel of a product: torch's library, or a GEMV for the few rows of a decode.

A step of few rows only reads the weights; libraries that are made for many rows do not always read
them at the full bandwidth. What is faster is measured, once for each shape and number of rows.
"""

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch

MAX_GEMV_ROWS = 8

Timer = Callable[[Callable[[], None]], float]
"""Seconds that a call takes on the device."""

MakeTimer = Callable[[], Timer]
"""Makes one; what it needs of the device's memory it gives back when it goes."""


class Gemv(Protocol):
    """x W^T + b for at most :data:`MAX_GEMV_ROWS` rows of ``x``."""

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """X [rows, in], weight [out, in], bias [out] -> ``out`` [rows, out]."""


def library(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """X W^T + b by torch: x [rows, in], weight [out, in], bias [out] -> ``out`` [rows, out]."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


class Matmul:
    """x W^T + b by whatever was measured as faster. One thread at a time.

    Until :meth:`measure` has seen a shape, and where there is no GEMV, it is the library.
    """

    def __init__(self, gemv: Gemv | None = None, timer: MakeTimer | None = None) -> None:
        """``gemv`` is the contender, ``timer`` makes the judge; without both is no contest."""
        self._gemv = gemv
        self._timer = timer
        # By [out, in] and rows: whether the GEMV was faster.
        self._faster: dict[tuple[int, int, int], bool] = {}

    def measure(self, weights: Iterable[torch.Tensor]) -> None:
        """Settle what multiplies by weights of these shapes. Not while a graph is captured."""
        if self._gemv is None or self._timer is None:
            return
        time = None
        for weight in weights:
            if (*weight.shape, 1) in self._faster:
                continue
            time = time or self._timer()
            for rows in range(1, MAX_GEMV_ROWS + 1):
                outputs, inputs = weight.shape
                arguments = weight.new_ones(rows, inputs), weight, weight.new_empty(rows, outputs)
                ours, theirs = partial(self._gemv, *arguments), partial(library, *arguments)
                self._faster[outputs, inputs, rows] = time(ours) < time(theirs)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """X [rows, in], weight [out, in], bias [out] -> ``out`` [rows, out]."""
        outputs, inputs = weight.shape
        if self._gemv is not None and self._faster.get((outputs, inputs, len(x))):
            self._gemv(x, weight, out, bias)
        else:
            library(x, weight, out, bias)


def cuda_timer(device: torch.device) -> Timer:
    """A timer of what is queued on ``device``'s current stream: the median of several runs.

    Before each the cache is written over, as a model's other layers do.
    """
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=device)

    def time(work: Callable[[], None]) -> float:
        work()  # compiles
        times: list[float] = []
        for _ in range(7):
            begin, end = _event(), _event()
            flush.zero_()
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    return time


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
