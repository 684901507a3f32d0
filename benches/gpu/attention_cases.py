"""Paged attention of one layer: decoding, prompts and drafts, by each backend that can be had."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benches.gpu.cases import Case
from benches.gpu.floors import Shape
from benches.gpu.part import Bench
from benches.gpu.steps import fill
from benches.gpu.timing import Work, copies
from pyengine._core import StepLayout
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.selection import detect, make_backend, select
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device_step import DeviceStep
from pyengine.model.torch.graphs import MAX_TOKENS

BLOCK_SIZE = 16
MOST_DRAFTS = 8
# Rows, new tokens of each, tokens before them.
DECODES = ((1, 1, 512), (1, 1, 4096), (1, 1, 8000), (16, 1, 512), (16, 1, 4096), (64, 1, 512),
           (64, 1, 4096), (256, 1, 512))  # fmt: skip
DRAFTS = ((1, 5, 1024), (16, 5, 1024), (64, 5, 1024))
PROMPTS = ((1, 1024, 0), (1, 8000, 0), (1, 1024, 7000), (8, 1024, 0))
# torch's attends row by row, with a mask of all pairs: much of it is slow to measure.
MOST_OF_TORCH = (16, 1024)


def attention_cases(bench: Bench, shape: Shape, names: Sequence[str]) -> Iterator[Case]:
    """All of them, by the backends of those names."""
    kinds = {"decode": DECODES, "drafts": DRAFTS, "prompt": PROMPTS}
    if bench.tiny:
        kinds = {"decode": ((2, 1, 20),), "drafts": ((2, 3, 20),), "prompt": ((1, 24, 0),)}
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    for kind, sizes in kinds.items():
        for rows, each, context in sizes:
            small = rows <= MOST_OF_TORCH[0] and rows * each <= MOST_OF_TORCH[1]
            able = [name for name in names if name != "torch" or small]
            kv, queries = layer_bytes(shape, rows, each, context, dtype.itemsize)
            yield Case(
                f"attention, {kind}",
                f"{rows} x {each} tokens behind {context}",
                {
                    name: partial(attends, bench, shape, name, (rows, each, context), dtype)
                    for name in able
                },
                read=kv + queries,
                flops=layer_flops(shape, rows, each, context),
            )


def made(
    bench: Bench, shape: Shape, name: str, size: tuple[int, int, int], dtype: torch.dtype
) -> AttentionBackend:
    """The backend ``name`` for steps of that size.

    Raises:
        ConfigError: The machine, or the shape, is not for it; says why.
    """
    rows, each, context = size
    kind = str(dtype).removeprefix("torch.")
    wanted = AttentionSpec(
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=kind,
        kv_dtype=kind,
        block_size=BLOCK_SIZE,
        max_rows=rows,
        max_tokens=rows * each,
        max_pages=pages_of(size),
        max_context=context + each,
    )
    chosen = select(wanted, detect(bench.device), name)
    return make_backend(chosen.name, wanted, bench.device)


def pages_of(size: tuple[int, int, int]) -> int:
    """Pages of all rows."""
    rows, each, context = size
    return rows * -(-(context + each) // BLOCK_SIZE)


def layer_bytes(shape: Shape, rows: int, each: int, context: int, item: int) -> tuple[int, int]:
    """Bytes of one layer's keys and values of all rows; and of queries and what comes out."""
    kv = 2 * rows * (context + each) * shape.kv_heads * shape.head_dim * item
    return kv, 2 * rows * each * shape.heads * shape.head_dim * item


def layer_flops(shape: Shape, rows: int, each: int, context: int) -> float:
    """Operations of one layer: products of each query with the keys and values that it sees."""
    pairs = rows * (each * context + each * (each + 1) / 2)
    return 4 * pairs * shape.heads * shape.head_dim


def attends(
    bench: Bench, shape: Shape, name: str, size: tuple[int, int, int], dtype: torch.dtype
) -> Sequence[Work]:
    """Calls of the backend ``name`` for one step, over caches of several layers in turn."""
    rows, each, context = size
    tokens, pages = rows * each, pages_of(size)
    layout = StepLayout(tokens, rows, pages, max_draft=MOST_DRAFTS, vocab_size=shape.vocabulary)
    host = StepBuffers(layout)
    fill(host, rows, each, context, BLOCK_SIZE, sampled=min(each, 1 + MOST_DRAFTS))
    step = DeviceStep(layout, bench.device, host)
    step.memory.copy_(torch.from_numpy(host.memory))
    backend = made(bench, shape, name, size, dtype)
    variant = backend.variant(step)
    # As the engine: prompts are planned as steps that no graph is for.
    captured = bench.cuda and backend.captures and tokens <= MAX_TOKENS
    backend.plan(step, variant, rows, tokens, captured=captured)
    like: dict[str, Any] = {"dtype": dtype, "device": bench.device}
    queries = torch.randn(tokens, shape.heads, shape.head_dim, **like)
    out = torch.empty_like(queries)
    cache = (pages, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    nbytes = layer_bytes(shape, rows, each, context, dtype.itemsize)[0]
    layers = [
        (torch.randn(cache, **like), torch.randn(cache, **like))
        for _ in range(copies(nbytes, bench.tiny))
    ]
    how = LayerAttention(angles=np.zeros((0, 0), np.float32), scale=shape.head_dim**-0.5)
    return [
        partial(backend.attend, step, queries, keys, values, out, tokens, how)
        for keys, values in layers
    ]
