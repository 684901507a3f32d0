"""Compiles what the engine launches for an H200, which takes none, and prints of each launch what
its code has: a line of JSON. A program, for Triton is not to interpret here; its argument is the
part of :data:`PARTS`, behind which another compute capability may stand.

Shapes are those of Llama-3-8B, and of other heads and caches where these decide.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget

from pyengine.kernels import chain, feed, hand_over
from pyengine.kernels.attention import paged as attention
from pyengine.kernels.attention.merging import Parts
from pyengine.kernels.attention.tiling import Heads, parts_size, prefix_tiling_for, tiling_for
from pyengine.kernels.layers import (
    activation,
    block_product,
    grouped,
    grouped_block,
    grouped_packed,
    head_norm,
    norm,
    packed_product,
    packed_rows,
    packed_tensor,
    quantize,
    rope,
    router,
)
from pyengine.kernels.sampling import greedy, penalties, top_logprobs, verify
from pyengine.kernels.sampling import sample as sampling
from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.model.step_fields import SAMPLING_ROW
from tests.kernels import machine_code
from tests.kernels.machine_code import compile_launch, launches

ROWS, TOKENS, CONTEXT, PROCESSORS = 256, 2048, 8192, 132
HIDDEN, INTERMEDIATE, VOCABULARY, NUM_BLOCKS = 4096, 14336, 128_256, 50_000
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn

Work = Callable[[], None]


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor that takes no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> torch.Tensor:
    return of(torch.int32, *shape)


def layers() -> Iterator[tuple[str, Work]]:
    """Beside attention; of the demo's shape too, where rows are short."""
    for dtype in (FP32, BF16, FP16):
        for hidden, inner in ((HIDDEN, INTERMEDIATE), (192, 512)):
            x, gain, gates = of(dtype, ROWS, hidden), of(dtype, hidden), of(dtype, ROWS, 2 * inner)
            out = of(dtype, ROWS, inner)
            kind = f"{dtype} {hidden}"
            yield kind, partial(norm.add_rms_norm, x, x, gain, 1e-5, x)
            yield kind, partial(activation.gated, gates, out)
            scales = of(FP32, ROWS, 1)
            yield kind, partial(quantize.quantize_rows, x, of(FP8, ROWS, hidden), scales)
        for heads, kv_heads, dim in ((32, 8, 128), (32, 8, 64), (6, 2, 32)):
            for kv_dtype in dict.fromkeys((dtype, FP8)):
                qkv = of(dtype, ROWS, (heads + 2 * kv_heads) * dim)
                cache = of(kv_dtype, NUM_BLOCKS, 16, kv_heads, dim)
                given = (qkv, of(FP32, CONTEXT, dim), ints(ROWS), ints(ROWS), cache, cache, heads)
                yield f"{dtype} {kv_dtype} {dim}", partial(rope.rope_append, *given)
            gains, normed = of(dtype, dim), of(dtype, ROWS, (heads + 2 * kv_heads) * dim)
            work = partial(head_norm.head_rms_norm, normed, gains, gains, heads, 1e-6)
            yield f"{dtype} {dim}", work


def weights(bits: int, group: int, kind: str, *shape: int) -> packed_tensor.PackedTensor:
    """Weights of a shape: symmetric integers, some with zeros, or with minimums and scales of
    float32 beside these; floats, or floats whose scales are powers of two.
    """
    *layers, outputs, inputs = shape
    floats = kind in ("floats", "powers")
    plain = FP8 if floats else torch.int8
    wide = bits == 8 and kind not in ("zeros", "minimums")
    values = of(plain if wide else torch.uint8, *layers, outputs, inputs * bits // 8)
    groups = *layers, -(-inputs // group), outputs
    scales = {"powers": torch.uint8, "minimums": FP32, "floats": FP32}.get(kind, BF16)
    return packed_tensor.PackedTensor(
        values,
        of(scales, *groups),
        of(torch.uint8, *groups) if kind == "zeros" else None,
        of(FP32, *groups) if kind == "minimums" else None,
        bits,
        group,
        floats,
    )


# Of --quantization, of AWQ, and what takes most room.
PACKED = [
    (4, 32, "symmetric"), (4, 128, "zeros"), (4, 32, "minimums"), (8, 32, "symmetric"),
    (8, 16, "minimums"),
]  # fmt: skip


def quantized() -> Iterator[tuple[str, Work]]:
    """Products with quantized weights, of few rows, some, and many."""
    for dtype in (BF16, FP16):
        for rows in (8, 64, TOKENS):
            x, out = of(dtype, rows, HIDDEN), of(dtype, rows, INTERMEDIATE)
            small, scales = of(FP8, rows, HIDDEN), of(FP32, HIDDEN // 128, rows)
            kind = f"{dtype} {rows}"
            yield kind, partial(quantize.quantize_groups, x, small, scales, 128)
            weight, of_outputs = (
                of(FP8, INTERMEDIATE, HIDDEN),
                of(FP32, HIDDEN // 128, INTERMEDIATE),
            )
            blocks = small, scales, weight, of_outputs, None, 128, out
            yield kind, partial(block_product.block_product, *blocks)
            for packed in (*PACKED, (8, 128, "floats")):
                matrix = weights(*packed, INTERMEDIATE, HIDDEN)
                yield kind, partial(packed_product.packed_product, x, matrix, None, out)


def tables() -> Iterator[tuple[str, Work]]:
    """Rows of quantized tables."""
    for dtype in (BF16, FP16):
        for packed in (*PACKED, (8, 128, "floats")):
            table = weights(*packed, VOCABULARY, HIDDEN)
            work = partial(packed_rows.packed_rows, table, ints(ROWS), of(dtype, ROWS, HIDDEN))
            yield f"{dtype} {packed}", work


def experts() -> Iterator[tuple[str, Work]]:
    """Of Qwen3-30B-A3B and of gpt-oss, for few rows in an expert and for many."""
    for dtype in (FP32, BF16, FP16):
        for count, chosen, hidden, inner in ((128, 8, 2048, 768), (32, 4, 2880, 2880)):
            routed, live = of(torch.int64, count), of(torch.int64, 1)
            given = (ints(ROWS, chosen), of(FP32, ROWS, chosen), routed, live)
            logits, bias = of(dtype, ROWS, count), of(FP32, count)
            grouping: dict[str, Any] = {"bias": bias, "groups": 4, "chosen_groups": 2}
            for rules in ({}, {"sigmoid": True} | grouping):
                yield f"{dtype} {count}", partial(router.route, logits, *given, **rules)
            shape = count, 2 * inner, hidden
            weight, biases = of(dtype, *shape), of(dtype, count, 2 * inner)
            for rows in (ROWS, 16 * TOKENS):
                x, out = of(dtype, rows, hidden), of(dtype, rows, 2 * inner)
                work = partial(grouped.grouped, x, weight, biases, ints(count), out)
                yield f"{dtype} {count}", work


def packed_experts() -> Iterator[tuple[str, Work]]:
    """Of gpt-oss in MXFP4 and in FP8 (beside integers), and of Qwen3-30B-A3B in integers, what
    takes most room, and in FP8.
    """
    small: list[tuple[int, int, str]] = [(4, 32, "powers"), (8, 128, "floats")]
    integers = [packed for packed in PACKED if packed[2] != "symmetric"]
    for count, hidden, inner, stored in ((32, 2880, 2880, small), (128, 2048, 768, integers)):
        for packed in stored:
            weight = weights(*packed, count, 2 * inner, hidden)
            for rows in (ROWS, 16 * TOKENS):
                x, out = of(BF16, rows, hidden), of(BF16, rows, 2 * inner)
                given = x, weight, of(BF16, count, 2 * inner), ints(count), out
                yield f"{packed}", partial(grouped_packed.grouped_packed, *given)
    count, hidden, inner = 128, 2048, 768
    for step in (32, 128):  # of a rank's share, and of blocks
        weight = weights(8, step, "floats", count, 2 * inner, hidden)
        for rows in (ROWS, 16 * TOKENS):
            small_rows, scales = of(FP8, rows, hidden), of(FP32, hidden // step, rows)
            out = of(BF16, rows, 2 * inner)
            blocks = small_rows, scales, weight, None, ints(count), out
            yield f"{step}", partial(grouped_block.grouped_block, *blocks)


def sampler() -> Iterator[tuple[str, Work]]:
    """Of rows that one program has, and several; and what is done to logits beside."""
    logit = ints(TOKENS)
    inputs = SamplingInputs(
        ints(ROWS, SAMPLING_ROW.itemsize // 4), of(torch.int64, ROWS), ints(ROWS + 1), logit, logit,
        logit, ints(ROWS, VOCABULARY // 32),
    )  # fmt: skip
    header, token_ids = of(torch.int64, 16), ints(TOKENS)
    counts, last, kept = ints(ROWS), ints(ROWS), ints(TOKENS)
    entries = (ints(TOKENS + 1), ints(9999), of(FP32, 9999), of(FP32, 9999))
    top = (ints(ROWS), ints(ROWS, 20), of(FP32, ROWS, 20), of(FP32, ROWS))
    for dtype in (BF16, FP32):
        rows = 64 if dtype == BF16 else 300
        scratch = sampling.SamplingScratch.for_rows(rows, VOCABULARY, "meta")
        given = (inputs, of(dtype, rows, VOCABULARY), logit, 0, scratch)
        yield f"{dtype} {rows}", partial(sampling.sample, *given)
        yield f"{dtype} {rows}", partial(greedy.greedy, *given[:3])
        logits = of(dtype, ROWS, VOCABULARY)
        yield f"{dtype}", partial(penalties.apply_penalties, logits, *entries)
        yield f"{dtype}", partial(penalties.apply_penalties, logits, *entries, 0, entries[2])
        yield f"{dtype}", partial(penalties.restore, logits, *entries[:3])
        yield f"{dtype}", partial(top_logprobs.top_logprobs, logits, *top)
    drafted = header, token_ids, logit, counts, counts, kept, last
    yield "", lambda: verify.verify(inputs, *drafted)
    yield "", lambda: feed.feed(header, token_ids, counts, counts, last)
    places = of(torch.int64, ROWS)
    yield "", lambda: hand_over.hand_over(last, counts, places, token_ids, VOCABULARY)
    yield "", lambda: hand_over.take_tokens(last, counts, VOCABULARY)


def attend() -> Iterator[tuple[str, Work]]:
    """Decoding of few rows and many, drafts, prompts; a prefix that all rows share."""
    pages = attention.Pages(ints(ROWS + 1), ints(ROWS), ints(ROWS + 1), ints(NUM_BLOCKS))
    room = 2 * parts_size(PROCESSORS)
    llama, narrow = (Heads(32, 8, dim, BF16, BF16) for dim in (128, 64))
    gemma = Heads(16, 2, 512, BF16, BF16)
    decode, drafts, prompt = (64, 64, True), (8, 40, False), (4, 2048, False)
    mixed = (64, 600, False)
    launched = [
        *[(llama, *step, False) for step in (decode, drafts, mixed, prompt, (1, 1, True))],
        *[(llama, *step, True) for step in (decode, (4, 256, False))],
        *[(replace(llama, kv_dtype=FP8), *step, False) for step in (decode, drafts, prompt)],
        (replace(llama, dtype=FP16, kv_dtype=FP16), *decode, False),
        *[(narrow, *step, False) for step in (decode, prompt)],
        (replace(narrow, kv_dtype=FP8), *decode, False),
        (Heads(6, 2, 32, BF16, BF16), *prompt, False),
        *[(gemma, *step, False) for step in (decode, drafts, prompt)],
        *[(replace(gemma, kv_dtype=FP8), *step, False) for step in (decode, drafts, prompt)],
    ]
    chunked = [(llama, *step, False) for step in (decode, drafts, prompt)]  # Llama 4
    for at, (heads, rows, tokens, one_query, shares) in enumerate([*launched, *chunked]):
        given: dict[str, Any] = {"context": CONTEXT, "processors": PROCESSORS}
        tiling = tiling_for(heads, rows, tokens, one_query=one_query, **given)
        most = room // (tokens * heads.query) - tiling.splits
        prefix = prefix_tiling_for(heads, tokens, splits=most, **given) if shares else None
        qkv = of(heads.dtype, tokens, (heads.query + 2 * heads.kv) * heads.dim)
        queries = qkv[:, : heads.query * heads.dim].view(tokens, heads.query, heads.dim)
        out = of(heads.dtype, tokens, heads.query, heads.dim)
        cache = of(heads.kv_dtype, NUM_BLOCKS, 16, heads.kv, heads.dim)
        parts = Parts(of(FP32, room * heads.dim), of(FP32, room))
        call: dict[str, Any] = {
            "rows": rows,
            "one_query": one_query,
            "scale": heads.dim**-0.5,
            "tiling": tiling,
            "parts": parts,
            "shared": ints(1) if shares else None,
            "prefix": prefix,
        }
        if at >= len(launched):
            call |= {"chunk": CONTEXT, "positions": ints(tokens)}
        args = (queries, cache, cache, pages, out)
        kind = f"{heads.dtype} {heads.kv_dtype} {heads.dim}"
        yield kind, partial(attention.attention, *args, **call)


PARTS: dict[str, Callable[[], Iterator[tuple[str, Work]]]] = {
    "layers": layers,
    "quantized": quantized,
    "tables": tables,
    "experts": experts,
    "packed experts": packed_experts,
    "sampler": sampler,
    "attention": attend,
}


def main(part: str, capability: str = "90") -> None:
    # A default that a kernel is left to, Triton may change.
    warnings.simplefilter("error")
    target = GPUTarget("cuda", int(capability), 32)
    with (
        patch.object(chain, "capable", return_value=target.arch >= 90),
        patch.object(machine_code, "TARGET", target),
    ):
        for kind, work in PARTS[part]():
            for launch in launches(work):
                figures = compile_launch(launch).figures(launch)
                ahead = bool(launch.kwargs.get("launch_pdl"))
                print(json.dumps({"kind": kind, "ahead": ahead, **figures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
