"""Paged attention of one layer: decoding, prompts and drafts, by each backend that can be had.

FlashInfer's is measured as the engine launches it, and with ``fa2`` or ``fa3`` behind its name with
all rows of a step in one launch, by kernels of FlashAttention 2 or 3.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from benches.gpu.cases import Case
from benches.gpu.floors import Shape
from benches.gpu.part import Bench
from benches.gpu.steps import add_prompt, fill
from benches.gpu.timing import Work, copies
from pyengine._core import StepLayout
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.flashinfer import launches
from pyengine.model.torch.attention.flashinfer.segments import Segment
from pyengine.model.torch.attention.selection import detect, make_backend, select
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.graphs import MAX_TOKENS

BLOCK_SIZE = 16
MOST_DRAFTS = 8


class Size(NamedTuple):
    """A step.

    Attributes:
        rows: Its rows, but for the prompt.
        each: New tokens of each.
        context: Tokens before them.
        prompt: Tokens of one more row, a prompt with none before it; 0 is no such row.
    """

    rows: int
    each: int
    context: int
    prompt: int = 0

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return self.rows * self.each + self.prompt

    @property
    def pages(self) -> int:
        """Pages of all rows."""
        return self.rows * -(-(self.context + self.each) // BLOCK_SIZE) + -(
            -self.prompt // BLOCK_SIZE
        )

    def __str__(self) -> str:
        prompt = f", a prompt of {self.prompt}" if self.prompt else ""
        return f"{self.rows} x {self.each} tokens behind {self.context}{prompt}"


DECODES = (Size(1, 1, 512), Size(1, 1, 4096), Size(1, 1, 8000), Size(16, 1, 512),
           Size(16, 1, 4096), Size(64, 1, 512), Size(64, 1, 4096), Size(256, 1, 512))  # fmt: skip
DRAFTS = (Size(1, 5, 1024), Size(16, 5, 1024), Size(64, 5, 1024))
PROMPTS = (Size(1, 1024, 0), Size(1, 8000, 0), Size(1, 1024, 7000), Size(8, 1024, 0))
# As a server's steps are while requests come: most rows decode, a chunk of a prompt beside them.
# The first is within a graph's size.
MIXED = (Size(64, 1, 512, 128), Size(64, 1, 512, 512), Size(64, 1, 4096, 512),
         Size(256, 1, 512, 512))  # fmt: skip
# The kind of segment by which all rows get kernels of one kind.
WHOLE = {"fa2": "short", "fa3": "prompt"}
# torch's attends row by row, with a mask of all pairs: much of it is slow to measure.
MOST_OF_TORCH = (16, 1024)


def attention_cases(bench: Bench, shape: Shape, names: Sequence[str]) -> Iterator[Case]:
    """All of them, by the backends of those names."""
    kinds = {"decode": DECODES, "drafts": DRAFTS, "prompt": PROMPTS, "mixed": MIXED}
    if bench.tiny:
        kinds = {
            "decode": (Size(2, 1, 20),),
            "drafts": (Size(2, 3, 20),),
            "prompt": (Size(1, 24, 0),),
            "mixed": (Size(2, 1, 20, 9),),
        }
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    for kind, sizes in kinds.items():
        for size in sizes:
            small = size.rows <= MOST_OF_TORCH[0] and size.tokens <= MOST_OF_TORCH[1]
            able = [name for name in names if name != "torch" or small]
            if "flashinfer" in able and kind == "mixed":
                able += [f"flashinfer {kernels}" for kernels in WHOLE]
            kv, queries = layer_bytes(shape, size, dtype.itemsize)
            yield Case(
                f"attention, {kind}",
                str(size),
                {name: partial(attends, bench, shape, name, size, dtype) for name in able},
                read=kv + queries,
                flops=layer_flops(shape, size),
            )


def made(bench: Bench, shape: Shape, name: str, size: Size, dtype: torch.dtype) -> AttentionBackend:
    """The backend ``name`` for steps of that size.

    Raises:
        ConfigError: The machine, or the shape, is not for it; says why.
    """
    kind = str(dtype).removeprefix("torch.")
    wanted = AttentionSpec(
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=kind,
        kv_dtype=kind,
        block_size=BLOCK_SIZE,
        max_rows=size.rows + 1,
        max_tokens=size.tokens,
        max_pages=size.pages,
        max_context=max(size.context + size.each, size.prompt),
    )
    chosen = select(wanted, detect(bench.device), name.split()[0])
    return make_backend(chosen.name, wanted, bench.device)


def layer_bytes(shape: Shape, size: Size, item: int) -> tuple[int, int]:
    """Bytes of one layer's keys and values of all rows; and of queries and what comes out."""
    keys = size.rows * (size.context + size.each) + size.prompt
    kv = 2 * keys * shape.kv_heads * shape.head_dim * item
    return kv, 2 * size.tokens * shape.heads * shape.head_dim * item


def layer_flops(shape: Shape, size: Size) -> float:
    """Operations of one layer: products of each query with the keys and values that it sees."""
    pairs = size.rows * (size.each * size.context + size.each * (size.each + 1) / 2)
    pairs += size.prompt * (size.prompt + 1) / 2
    return 4 * pairs * shape.heads * shape.head_dim


def attends(
    bench: Bench, shape: Shape, name: str, size: Size, dtype: torch.dtype
) -> Sequence[Work]:
    """Calls of the backend ``name`` for one step, over caches of several layers in turn."""
    tokens, pages = size.tokens, size.pages
    rows = size.rows + (size.prompt > 0)
    layout = StepLayout(tokens, rows, pages, max_draft=MOST_DRAFTS, vocab_size=shape.vocabulary)
    host = StepBuffers(layout)
    sampled = min(size.each, 1 + MOST_DRAFTS)
    fill(host, size.rows, size.each, size.context, BLOCK_SIZE, sampled=sampled)
    if size.prompt:
        add_prompt(host, size.prompt, BLOCK_SIZE)
    step = DeviceStep(layout, bench.device, host)
    step.memory.copy_(torch.from_numpy(host.memory))
    backend = made(bench, shape, name, size, dtype)
    variant = backend.variant(step)
    kernels = name.partition(" ")[2]
    # As the engine, but for steps whose rows all get kernels of one kind.
    captured = bench.cuda and backend.captures and not kernels and tokens <= MAX_TOKENS
    whole = Segment(WHOLE[kernels], (0, rows), (0, tokens)) if kernels else None  # type: ignore[arg-type]
    with nullcontext() if whole is None else patch.object(launches, "segments", lambda *_: [whole]):
        backend.plan(step, variant, rows, tokens, captured=captured)
        # The launches of a kind of layers are planned as the first such layer attends.
        works = layer_works(bench, shape, backend, step, size, dtype)
        works[0]()
    return works


def layer_works(
    bench: Bench,
    shape: Shape,
    backend: AttentionBackend,
    step: DeviceStep,
    size: Size,
    dtype: torch.dtype,
) -> Sequence[Work]:
    """Calls for a planned step."""
    tokens = size.tokens
    like: dict[str, Any] = {"dtype": dtype, "device": bench.device}
    queries = torch.randn(tokens, shape.heads, shape.head_dim, **like)
    out = torch.empty_like(queries)
    cache = (size.pages, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    nbytes = layer_bytes(shape, size, dtype.itemsize)[0]
    layers = [
        (torch.randn(cache, **like), torch.randn(cache, **like))
        for _ in range(copies(nbytes, bench.tiny))
    ]
    how = LayerAttention(angles=np.zeros((0, 0), np.float32), scale=shape.head_dim**-0.5)
    return [
        partial(backend.attend, step, queries, keys, values, out, tokens, how)
        for keys, values in layers
    ]
