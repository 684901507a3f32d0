"""The kernels of a model's layers: norms, rotation, activation, products for few rows."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benches.gpu.cases import Case, by
from benches.gpu.floors import Shape
from benches.gpu.part import Bench
from benches.gpu.timing import Work, copies

ROWS = (1, 64, 256, 8192)
PRODUCT_ROWS = (1, 2, 4, 8, 64)
EPSILON = 1e-5
BLOCK_SIZE = 16


def layer_cases(bench: Bench, shape: Shape) -> Iterator[Case]:
    """All of them."""
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    item = dtype.itemsize
    rows = (1, 3) if bench.tiny else ROWS
    for count in rows:
        yield norm(bench, shape, count, dtype)
    for count in rows:
        yield head_norm(bench, shape, count, dtype)
    for count in rows:
        yield rope(bench, shape, count, dtype)
    for count in rows:
        # [count, 2 * intermediate] read, half as much written.
        copied = 3 * count * shape.intermediate * item
        yield Case(
            "gated",
            f"{count} rows",
            works(
                bench,
                by(bench, "layers.activation", "gated", both=True),
                partial(silu_buffers, bench, shape, count, dtype),
                copied,
            ),
            copied=copied,
        )
    yield from products(bench, shape, dtype)


def works(
    bench: Bench,
    implementations: dict[str, Callable[..., Any]],
    buffers: Callable[[], tuple[Any, ...]],
    nbytes: float,
) -> dict[str, Callable[[], Sequence[Work]]]:
    """Each implementation on several sets of ``buffers``, of ``size`` bytes each."""

    def make(call: Callable[..., Any]) -> Sequence[Work]:
        return [partial(call, *buffers()) for _ in range(copies(int(nbytes), bench.tiny))]

    return {name: partial(make, call) for name, call in implementations.items()}


def norm(bench: Bench, shape: Shape, rows: int, dtype: torch.dtype) -> Case:
    """Residual addition and norm: two read, two written, and the weight."""
    size: dict[str, Any] = {"dtype": dtype, "device": bench.device}

    def buffers() -> tuple[Any, ...]:
        residual, branch, out = (torch.randn(rows, shape.hidden, **size) for _ in range(3))
        return residual, branch, torch.ones(shape.hidden, **size), EPSILON, out

    copied = (4 * rows + 1) * shape.hidden * dtype.itemsize
    implementations = by(bench, "layers.norm", "add_rms_norm", both=True)
    return Case(
        "add_rms_norm",
        f"{rows} rows",
        works(bench, implementations, buffers, copied),
        copied=copied,
    )


def head_norm(bench: Bench, shape: Shape, tokens: int, dtype: torch.dtype) -> Case:
    """Queries and keys are read and written; a Llama has none of it, a Qwen3 of its size would."""
    size: dict[str, Any] = {"dtype": dtype, "device": bench.device}

    def buffers() -> tuple[Any, ...]:
        query, key = (torch.ones(shape.head_dim, **size) for _ in range(2))
        return torch.randn(tokens, shape.qkv_width, **size), query, key, shape.heads, EPSILON

    copied = 2 * tokens * (shape.heads + shape.kv_heads) * shape.head_dim * dtype.itemsize
    implementations = by(bench, "layers.head_norm", "head_rms_norm", both=True)
    return Case(
        "head_rms_norm",
        f"{tokens} tokens",
        works(bench, implementations, buffers, copied),
        copied=copied,
    )


def rope(bench: Bench, shape: Shape, tokens: int, dtype: torch.dtype) -> Case:
    """Queries are rotated in place, keys and values go to the cache: all read and written."""
    size: dict[str, Any] = {"dtype": dtype, "device": bench.device}
    blocks = -(-tokens // BLOCK_SIZE)

    def buffers() -> tuple[Any, ...]:
        cache = (blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
        numbers = torch.arange(tokens, dtype=torch.int32, device=bench.device)
        return (
            torch.randn(tokens, shape.qkv_width, **size),
            torch.randn(tokens, shape.head_dim, device=bench.device),
            numbers,
            numbers.flip(0).contiguous(),
            torch.zeros(cache, **size),
            torch.zeros(cache, **size),
            shape.heads,
        )

    # And each token's angles, in float32.
    copied = tokens * (2 * shape.qkv_width * dtype.itemsize + 4 * shape.head_dim)
    implementations = by(bench, "layers.rope", "rope_append")
    return Case(
        "rope_append",
        f"{tokens} tokens",
        works(bench, implementations, buffers, copied),
        copied=copied,
    )


def silu_buffers(bench: Bench, shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Gates and ups, and what comes out."""
    gate_up = torch.randn(rows, 2 * shape.intermediate, dtype=dtype, device=bench.device)
    return gate_up, torch.empty_like(gate_up[:, : shape.intermediate].contiguous())


def products(bench: Bench, shape: Shape, dtype: torch.dtype) -> Iterator[Case]:
    """Rows by each of a layer's matrices, and by the output matrix, by torch's library."""
    matrices = {
        "qkv": (shape.qkv_width, shape.hidden),
        "output": (shape.hidden, shape.heads * shape.head_dim),
        "gate and up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
        "head": (shape.vocabulary, shape.hidden),
    }
    for name, (outputs, inputs) in matrices.items():
        for rows in (1, 2) if bench.tiny else PRODUCT_ROWS:

            def buffers(rows: int = rows, outputs: int = outputs, inputs: int = inputs) -> Any:
                size: dict[str, Any] = {"dtype": dtype, "device": bench.device}
                weight = torch.randn(outputs, inputs, **size)
                return torch.randn(rows, inputs, **size), weight, torch.empty(rows, outputs, **size)

            weight_bytes = outputs * inputs * dtype.itemsize
            yield Case(
                "mm",
                f"{rows} rows by {name}",
                works(bench, {"torch": library}, buffers, weight_bytes),
                read=weight_bytes + rows * (outputs + inputs) * dtype.itemsize,
                flops=2 * rows * outputs * inputs,
            )


def library(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """The product by torch's library."""
    torch.mm(x, weight.t(), out=out)
