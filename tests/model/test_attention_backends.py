"""Backends of attention against torch's, and what rows of a step share."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention import cascade
from pyengine.model.torch.attention import triton as backend
from pyengine.model.torch.attention.backend import Rehearsal
from pyengine.model.torch.attention.cascade import cascade_pays, shared_tokens
from pyengine.model.torch.attention.selection import make_backend
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.attention.variants import SHORT_QUERIES, decodes
from pyengine.model.torch.attention.warm_up import warm_up
from tests.model.paged_steps import Step, fill, layer_of, layout_of, pad, random_table, spec_of

pytest.importorskip("triton")
CPU, BLOCKS = torch.device("cpu"), 40


def attend(
    ours: Any, step: Any, variant: str, rows: int, tokens: int, queries: torch.Tensor, **how: Any
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(BLOCKS, 4, 2, 16, generator=generator) for _ in range(2))
    out = torch.zeros_like(queries)
    ours.plan(step, variant, rows, tokens, captured=ours.captures)
    ours.attend(step, queries, keys, values, out, tokens, layer_of(**how))
    return out


@pytest.mark.parametrize(
    ("lengths", "counts", "bucket", "shared", "variant"),
    [
        ([9, 1, 20], [1, 1, 1], (4, 4), 0, "decode"),
        ([9, 6, 20], [1, 5, 2], (8, 8), 0, "ragged"),
        ([14, 9, 20], [1, 1, 1], (4, 4), 2, "decode_cascade"),
        ([14, 9, 20], [3, 1, 4], (8, 8), 1, "ragged_cascade"),
    ],
)
def test_triton_is_torch(
    lengths: list[int],
    counts: list[int],
    bucket: tuple[int, int],
    shared: int,
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cascade, "cascade_pays", lambda *_, **__: True)
    spec = spec_of()
    step: Any = Step(StepBuffers(layout_of(spec)))
    table = random_table(np.random.default_rng(5), lengths, 4, BLOCKS, shared)
    fill(step.host, lengths, counts, table)
    step.take()
    queries = torch.randn(bucket[1], 4, 16, generator=torch.Generator().manual_seed(1))
    tokens = sum(counts)
    reference = len(lengths), tokens, queries
    ways: list[dict[str, Any]] = [
        {},
        {"window": 5},
        {"soft_cap": 1.5, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ]
    rights = [attend(TorchAttention(), step, "ragged", *reference, **how) for how in ways]
    ours = backend.TritonAttention(spec, CPU, processors=2)
    assert ours.variant(step) == variant
    pad(step.host, *bucket)
    step.take()
    for how, right in (*zip(ways, rights, strict=True), (ways[0], rights[0])):
        got = attend(ours, step, variant, *bucket, queries, **how)
        torch.testing.assert_close(got[:tokens], right[:tokens], rtol=1e-5, atol=1e-6)


def test_a_prefix_without_room_for_its_parts_is_read_by_each_row() -> None:
    spec = spec_of(num_heads=4, max_tokens=600)
    step: Any = Step(StepBuffers(layout_of(spec)))
    ours = backend.TritonAttention(spec, CPU, processors=1)
    ours.plan(step, "ragged_cascade", 8, 600, captured=True)
    assert ours._launch is not None
    assert ours._launch[-1] is None
    ours.plan(step, "ragged_cascade", 8, 8, captured=True)
    assert ours._launch[-1] is not None


def test_backends_are_made_by_name() -> None:
    assert make_backend("torch", spec_of(), CPU).name == "torch"
    one = torch.zeros(1, 4, 16)
    step: Any = None
    with pytest.raises(RuntimeError, match="before plan"):
        backend.TritonAttention(spec_of(), CPU, processors=1).attend(
            step, one, one, one, one, 1, layer_of()
        )


class Recorder:
    """Notes what it is asked for; the steps that it sees are those of a planner."""

    name, captures = "recorder", True

    def __init__(self) -> None:
        self.planned: list[tuple[str, int, int]] = []

    def variant(self, step: Any) -> str:
        return "decode" if decodes(step.host) else "ragged"

    def plan(self, step: Any, variant: str, rows: int, tokens: int, *, captured: bool) -> None:
        host = step.host
        assert host.query_start[: rows + 1].tolist()[-1] == tokens == host.num_tokens
        assert (np.diff(host.page_indptr[: rows + 1]) * 4 >= host.kv_length[:rows]).all()
        assert rows < 2 or shared_tokens(host, 4) == 4
        self.planned.append((variant, rows, tokens))

    def attend(self, step: Any, queries: Any, *more: Any) -> None:
        assert queries.count_nonzero() == 0

    def rehearsals(self) -> tuple[()]:
        return ()

    def forget(self, variant: str, tokens: int) -> None:
        """Nothing is captured."""


def test_every_kind_of_step_is_warmed_up() -> None:
    recorder = Recorder()
    warm_up(recorder, spec_of(max_tokens=128, max_context=128, max_pages=512), CPU)
    assert recorder.planned == [
        ("decode", 1, 1),
        ("decode", 2, 2),
        ("decode_cascade", 2, 2),
        ("decode", 8, 8),
        ("decode_cascade", 8, 8),
        ("ragged", 1, 4),
        ("ragged", 4, 16),
        ("ragged_cascade", 4, 16),
        ("ragged", 1, 64),
        ("ragged", 1, 124),
    ]
    small = spec_of(max_tokens=4, max_rows=2, max_context=8, max_pages=4)
    warm_up(backend.TritonAttention(small, CPU, processors=1), small, CPU)


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=5),
    shared=st.integers(0, 30),
)
def test_shared_tokens(rows: list[tuple[int, int]], shared: int) -> None:
    counts = [count for _, count in rows]
    lengths = [shared * 4 + own + count for (own, count) in rows]
    table = random_table(np.random.default_rng(shared), lengths, 4, 500, shared)
    host = StepBuffers(layout_of(spec_of(max_pages=500)))
    fill(host, lengths, counts, table)
    before = min([length - count for length, count in zip(lengths, counts, strict=True)], default=0)
    found = 0
    while len(rows) > 1 and 4 * (found + 1) <= before:
        if len({pages[found] for pages in table}) > 1:
            break
        found += 1
    assert shared_tokens(host, 4) == 4 * found


def test_a_cascade_pays_for_many_rows_and_long_prefixes() -> None:
    # Llama-3-8B in bfloat16: 4 KiB of keys and values for a token in a layer.
    sizes = {"token_bytes": 4096, "part_bytes": 4 * 32 * 128, "parts": 2}

    def pays(rows: int, shared: int) -> bool:
        return cascade_pays(rows, rows, shared, **sizes)

    assert not pays(1, 100_000)
    assert not pays(2, 2048)
    assert pays(2, 16_384)
    assert pays(32, 1024)
    assert not pays(32, 128)
    assert pays(256, 128)
    # A prompt's many queries cost more to merge than a prefix that two rows share.
    assert not cascade_pays(2, 4096, 16_384, **sizes)


@pytest.mark.parametrize(
    ("heads", "processors", "context"),
    [
        ((32, 8, 128, "bfloat16"), 132, 131_072),
        ((4, 1, 128, "float8_e4m3fn"), 108, 2048),
        ((28, 4, 128, "bfloat16"), 132, 600),
        ((8, 2, 256, "bfloat16"), 16, 8192),
        ((71, 1, 64, "bfloat16"), 132, 2048),
    ],
    ids=str,
)
def test_rehearsals_take_every_kernel_that_a_step_may_take(
    heads: tuple[int, int, int, str], processors: int, context: int
) -> None:
    """And no other: of all steps of up to so many rows and tokens, and of their graphs."""
    most_rows, most_tokens = 40, 400
    query, kv, dim, kv_dtype = heads
    spec = spec_of(
        num_heads=query, num_kv_heads=kv, head_dim=dim, dtype="bfloat16", kv_dtype=kv_dtype,
        block_size=16, max_rows=most_rows, max_tokens=most_tokens, max_pages=1,
        max_context=context,
    )  # fmt: skip
    ours = backend.TritonAttention(spec, CPU, processors=processors)

    def kernels(steps: Iterable[Rehearsal]) -> set[tuple[object, ...]]:
        return {kernel for step in steps for kernel in ours._kernels(step)}

    steps = [
        Rehearsal(f"{kind}{prefix}", rows, tokens)
        for rows in range(1, most_rows + 1)
        for tokens in range(rows, most_tokens + 1)
        for kind in ("decode", "ragged")
        for prefix in ("", "_cascade")[: 1 + (rows > 1)]
        if kind == "ragged" or rows == tokens or tokens > most_rows == rows
    ]
    steps += [
        step._replace(variant="mixed")
        for step in steps
        if step.variant == "ragged" and step.tokens > SHORT_QUERIES
    ]
    assert kernels(ours.rehearsals()) == kernels(steps)


@pytest.mark.parametrize("variant", ["mixed", "prompts"])
def test_graphs_with_a_long_prompt_have_tiles_for_it(variant: str) -> None:
    """With as many rows as tokens, as a bucket has; a program reads keys for 16 queries, not 8."""
    spec = spec_of(
        num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", kv_dtype="bfloat16",
        block_size=16, max_rows=512, max_tokens=512, max_pages=1, max_context=8192,
    )  # fmt: skip
    ours = backend.TritonAttention(spec, CPU, processors=132)
    tiles = [ours._cut(each, 256, 256)[1].rows for each in ("ragged", variant)]
    assert tiles == [32, 64]
