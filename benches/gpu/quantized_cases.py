"""Products with quantized weights: rows by a layer's matrices as they are stored.

The floor is that of their bytes; the ``mm`` of :mod:`benches.gpu.layer_cases` has the dense
matrices beside them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benches.gpu.cases import Case, by
from benches.gpu.floors import Shape
from benches.gpu.layer_cases import works
from benches.gpu.part import Bench
from benches.gpu.timing import Work, copies
from pyengine.kernels.layers.packed_tensor import PackedTensor
from pyengine.kernels.layers.quantize import FLOAT8

ROWS = (1, 64, 2048)
STEP = 128
PACKED = ((4, 32), (4, 64), (8, 32))
"""Bits, and inputs of a group."""

INNER_TILES = 8
"""Of torch's layout of 4 bits."""


def quantized_cases(bench: Bench, shape: Shape) -> Iterator[Case]:
    """All of them."""
    outputs, inputs = 2 * shape.intermediate, shape.hidden
    for rows in (1, 3) if bench.tiny else ROWS:
        yield float8_groups(bench, rows, inputs)
        yield float8_blocks(bench, rows, "gate and up", outputs, inputs)
        for bits, group in PACKED:
            if inputs % group == 0:
                yield integers(bench, rows, "gate and up", (outputs, inputs), bits, group)
        yield small_floats(bench, rows)
        yield float8_experts(bench, rows)


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
    kernels = by(bench, "layers.block_product", "block_product")
    if bench.device.type == "cuda" and rows % 4 == 0:
        kernels["torch"] = library_blocks
    return Case(
        "block_product",
        f"{rows} rows by {name}",
        works(bench, kernels, buffers, weights),
        read=weights + rows * (inputs + 4 * steps + outputs * dtype.itemsize),
        flops=2 * rows * outputs * inputs,
    )


def library_blocks(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, *_: Any
) -> None:
    """cuBLAS's, on Hopper from CUDA 12.9 on: weights have a scale for each 128 outputs."""
    scaling = torch.nn.functional.ScalingType
    torch.nn.functional.scaled_mm(
        x, weight.t(), x_scales.t(), scaling.BlockWise1x128, scales[:, ::STEP],
        scaling.BlockWise128x128, output_dtype=torch.bfloat16,
    )  # fmt: skip


def integers(
    bench: Bench, rows: int, name: str, shape: tuple[int, int], bits: int, group: int
) -> Case:
    """Symmetric integers with a scale in 16 bits for each group of inputs."""
    dtype, device = torch.bfloat16 if bench.cuda else torch.float32, bench.device
    outputs, inputs = shape

    def octets() -> torch.Tensor:
        size = outputs, inputs * bits // 8
        return torch.randint(0, 256, size, dtype=torch.uint8, device=device)

    def buffers() -> tuple[Any, ...]:
        values = octets() if bits == 4 else octets().view(torch.int8)
        scales = torch.rand(inputs // group, outputs, device=device).to(torch.bfloat16)
        weight = PackedTensor(values, scales, None, None, bits, group)
        x = torch.randn(rows, inputs, dtype=dtype, device=device)
        return x, weight, None, torch.empty(rows, outputs, dtype=dtype, device=device)

    def of_library() -> Sequence[Work]:
        """The product of 4 bits that torch has, of a layout of its own."""
        made = []
        for _ in range(copies(outputs * inputs // 2, bench.tiny)):
            x = torch.randn(rows, inputs, dtype=dtype, device=device)
            weight = torch._convert_weight_to_int4pack(octets(), INNER_TILES)
            scales = torch.rand(inputs // group, outputs, 2, device=device).to(dtype)
            made.append(partial(torch._weight_int4pack_mm, x, weight, group, scales))
        return made

    weights = outputs * inputs * bits // 8 + 2 * outputs * inputs // group
    made = works(bench, by(bench, "layers.packed_product", "packed_product"), buffers, weights)
    if bench.device.type == "cuda" and bits == 4:
        made["torch"] = of_library
    return Case(
        "packed_product",
        f"{rows} rows by {name}, {bits} bits by {group}",
        made,
        read=weights + rows * (inputs + outputs) * dtype.itemsize,
        flops=2 * rows * outputs * inputs,
    )


def small_floats(bench: Bench, rows: int) -> Case:
    """Gates and ups of experts in MXFP4, those of gpt-oss-120b: rows go to all of them in turn."""
    experts, chosen, outputs, inputs = (4, 2, 64, 64) if bench.tiny else (128, 4, 5760, 2880)
    dtype, device = torch.bfloat16 if bench.cuda else torch.float32, bench.device
    sent = rows * chosen

    def buffers() -> tuple[Any, ...]:
        octets: dict[str, Any] = {"dtype": torch.uint8, "device": device}
        values = torch.randint(0, 256, (experts, outputs, inputs // 2), **octets)
        powers = torch.full((experts, inputs // 32, outputs), 120, **octets)
        weight = PackedTensor(values, powers, None, None, 4, 32, floats=True)
        x = torch.randn(sent, inputs, dtype=dtype, device=device)
        ends = in_turn(sent, experts, device)
        return x, weight, None, ends, torch.empty(sent, outputs, dtype=dtype, device=device)

    read = min(experts, sent) * outputs * inputs * (4 + 8 / 32) / 8
    weights = int(experts * outputs * inputs * (4 + 8 / 32) / 8)
    kernels = by(bench, "layers.grouped_packed", "grouped_packed")
    return Case(
        "grouped_packed",
        f"{rows} rows, {chosen} of {experts}, MXFP4",
        works(bench, kernels, buffers, weights),
        read=int(read) + sent * (inputs + outputs) * dtype.itemsize,
        flops=2 * sent * outputs * inputs,
    )


def float8_experts(bench: Bench, rows: int) -> Case:
    """Gates and ups of experts in 8-bit floats, those of Qwen3-30B-A3B, and rows of 8 bits."""
    experts, chosen, outputs, inputs = (4, 2, 64, 64) if bench.tiny else (128, 8, 1536, 2048)
    dtype, device = torch.bfloat16 if bench.cuda else torch.float32, bench.device
    sent, steps = rows * chosen, -(-inputs // STEP)

    def buffers() -> tuple[Any, ...]:
        values = torch.randn(experts, outputs, inputs, device=device).to(FLOAT8)
        scales = torch.rand(experts, steps, outputs, device=device)
        weight = PackedTensor(values, scales, None, None, 8, STEP, floats=True)
        x, x_scales = torch.randn(sent, inputs, device=device), torch.rand(steps, sent)
        ends = in_turn(sent, experts, device)
        out = torch.empty(sent, outputs, dtype=dtype, device=device)
        return x.to(FLOAT8), x_scales.to(device), weight, None, ends, out

    each = outputs * (inputs + 4 * steps)
    kernels = by(bench, "layers.grouped_block", "grouped_block")
    return Case(
        "grouped_block",
        f"{rows} rows, {chosen} of {experts}",
        works(bench, kernels, buffers, experts * each),
        read=min(experts, sent) * each + sent * (inputs + 4 * steps + outputs * dtype.itemsize),
        flops=2 * sent * outputs * inputs,
    )


def in_turn(rows: int, groups: int, device: torch.device) -> torch.Tensor:
    """Where the rows of each group end that go to all of them in turn, int32 [groups]."""
    counts = torch.full((groups,), rows // groups, dtype=torch.int32, device=device)
    counts[: rows % groups] += 1
    return counts.cumsum(0, dtype=torch.int32)


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
