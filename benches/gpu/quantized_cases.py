"""Products with quantized weights: rows by a layer's matrices as they are stored.

The floor is that of their bytes; the ``mm`` of :mod:`benches.gpu.layer_cases` has the dense
matrices beside them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benches.gpu.cases import Case, by
from benches.gpu.floors import Shape
from benches.gpu.layer_cases import works
from benches.gpu.part import Bench
from pyengine.kernels.layers.quantize import FLOAT8

ROWS = (1, 8, 64, 2048)
STEP = 128


def quantized_cases(bench: Bench, shape: Shape) -> Iterator[Case]:
    """All of them."""
    matrices = {
        "gate and up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }
    for name, (outputs, inputs) in matrices.items():
        for rows in (1, 3) if bench.tiny else ROWS:
            yield float8_blocks(bench, rows, name, outputs, inputs)
    for rows in (1, 3) if bench.tiny else ROWS:
        yield float8_groups(bench, rows, shape.hidden)


def float8_blocks(bench: Bench, rows: int, name: str, outputs: int, inputs: int) -> Case:
    """8-bit floats with scales for each 128 inputs, of rows and of weights."""
    dtype, device = torch.bfloat16 if bench.cuda else torch.float32, bench.device
    steps = -(-inputs // STEP)

    def buffers() -> tuple[Any, ...]:
        x, weight = (torch.randn(n, inputs, device=device).to(FLOAT8) for n in (rows, outputs))
        x_scales, scales = (torch.rand(steps, n, device=device) for n in (rows, outputs))
        out = torch.empty(rows, outputs, dtype=dtype, device=device)
        return x, x_scales, weight, scales, None, STEP, out

    weights = outputs * (inputs + 4 * steps)
    return Case(
        "block_product",
        f"{rows} rows by {name}",
        works(bench, by(bench, "layers.block_product", "block_product"), buffers, weights),
        read=weights + rows * (inputs + 4 * steps + outputs * dtype.itemsize),
        flops=2 * rows * outputs * inputs,
    )


def float8_groups(bench: Bench, rows: int, width: int) -> Case:
    """Rows become 8-bit floats, with a scale for each 128."""
    dtype, device = torch.bfloat16 if bench.cuda else torch.float32, bench.device

    def buffers() -> tuple[Any, ...]:
        x = torch.randn(rows, width, dtype=dtype, device=device)
        return x, x.to(FLOAT8), torch.empty(-(-width // STEP), rows, device=device)

    copied = rows * (width * (dtype.itemsize + 1) + 4 * -(-width // STEP))
    kernels = by(bench, "layers.quantize", "quantize_groups", both=True)
    calls: dict[str, Callable[..., Any]] = {
        name: partial(_by_steps, call) for name, call in kernels.items()
    }
    return Case(
        "quantize_groups", f"{rows} rows", works(bench, calls, buffers, copied), copied=copied
    )


def _by_steps(call: Any, *buffers: torch.Tensor) -> None:
    call(*buffers, STEP)
