"""How near to their floors are the kernels, one by one?

The floor of a kernel is its bytes or its operations over what the device was measured to do, and
at least the time from one tiny kernel to the next. Each is captured in a CUDA graph, where it can
be, and works on several buffers in turn, as the layers of a model do. ``torch`` is the reference
of each, or torch's own way.
"""

import itertools
from collections.abc import Generator
from dataclasses import dataclass

from benches.gpu import tiny
from benches.gpu.attention_cases import attention_cases
from benches.gpu.cases import Case
from benches.gpu.expert_cases import expert_cases
from benches.gpu.floors import LLAMA_3_8B
from benches.gpu.layer_cases import layer_cases
from benches.gpu.part import Bench, Part
from benches.gpu.quantized_cases import quantized_cases
from benches.gpu.sampling_cases import flashinfer_cases, sampling_cases


@dataclass(frozen=True)
class Row:
    """One implementation of a kernel at one size.

    Attributes:
        kernel: Its name.
        at: The size.
        by: The implementation.
        time_s: Of one call, on the device.
        floor_s: The least that it can take.
        over_floor: Of the time.
        captured: Whether it was replayed from a CUDA graph.
        note: Why figures are missing.
    """

    kernel: str
    at: str
    by: str
    time_s: float | None = None
    floor_s: float | None = None
    over_floor: float | None = None
    captured: bool | None = None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """Kernel by kernel, few rows first."""
    shape = tiny.SHAPE if bench.tiny else LLAMA_3_8B
    cases = itertools.chain(
        layer_cases(bench, shape),
        quantized_cases(bench, shape),
        expert_cases(bench),
        sampling_cases(bench, shape),
        attention_cases(bench, shape, ("triton", "torch") if bench.cuda else ("torch",)),
    )
    if bench.cuda:
        # Last, for it may compile for minutes at its first use.
        theirs = attention_cases(bench, shape, ["flashinfer"])
        cases = itertools.chain(cases, theirs, flashinfer_cases(bench, shape))
    for case in cases:
        for implementation in case.make:
            yield measured(bench, case, implementation)


def measured(bench: Bench, case: Case, by: str) -> Row:
    """The row of one implementation; one that fails says why."""
    floor = bench.floor(case.floor_s)
    try:
        timing = bench.clock.time(case.make[by]())
    except Exception as error:  # noqa: BLE001 - a kernel that fails costs the others nothing
        return Row(
            case.kernel, case.at, by, floor_s=floor, note=f"{type(error).__name__}: {error}"[:200]
        )
    return Row(
        case.kernel,
        case.at,
        by,
        time_s=timing.seconds,
        floor_s=floor,
        over_floor=None if floor is None else timing.seconds / floor,
        captured=timing.captured,
    )


PART = Part("kernels", "How near to their floors are the kernels?", 70.0, Row, run)
