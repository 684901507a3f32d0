"""Paged attention in Triton, in torch and in Rust."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import CpuKernels, CpuStep, step_numbers
from pyengine.kernels.attention.merging import Parts
from pyengine.kernels.attention.paged import Pages, attention
from pyengine.kernels.attention.tiling import (
    Heads,
    Tiling,
    parts_size,
    power_of_two,
    prefix_tiling_for,
    tiling_for,
)
from pyengine.model.cpu.executor import run_once
from tests.kernels.backends import DEVICE
from tests.kernels.paged import PagedCase, int32, paged_case
from tests.kernels.pairs import DTYPES, UNITS, cpu_tensor

FLOAT8 = torch.float8_e4m3fn
SMALL = Tiling(rows=16, keys=16, splits=1, warps=4, stages=2)


@pytest.fixture(autouse=True)
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU has them; Triton's interpreter takes the bits for integers."""
    import triton.language as tl
    from triton.runtime import interpreter

    theirs = interpreter.InterpreterBuilder.create_dot

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return theirs(self, wide(a), wide(b), *more)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def run(case: PagedCase, tiling: Tiling, **more: Any) -> torch.Tensor:
    """What the kernel gives; NaN for tokens of no row."""
    out = torch.full_like(case.queries.contiguous(), float("nan"))
    count = tiling.splits + (more["prefix"].splits if "prefix" in more else 0)
    sums = len(out) * case.heads.query * count
    # What an earlier launch left there.
    parts = Parts(
        torch.full((sums * case.heads.dim,), 1e30, device=DEVICE),
        torch.full((sums,), 1e30, device=DEVICE),
    )
    attention(
        case.queries, case.keys, case.values, case.pages, out,
        rows=case.rows, one_query=case.one_query, scale=case.scale,
        tiling=tiling, parts=parts, **more,
    )  # fmt: skip
    return out


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the rounding of the result, and that of the weights to the type of the values.

    In float32 both sums, over up to 69 tokens in different orders, are rounded themselves.
    """
    error = UNITS[expected.dtype] * (16 if expected.dtype == torch.float32 else 4)
    torch.testing.assert_close(got.float(), expected.float(), rtol=error, atol=error)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=24, deadline=None)
@given(data=st.data())
def test_triton_is_the_reference(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    heads = Heads(
        *data.draw(st.sampled_from([(1, 1), (4, 2), (7, 1)])),
        dim=data.draw(st.sampled_from([8, 16, 80])),
        dtype=dtype,
        kv_dtype=data.draw(st.sampled_from([dtype, FLOAT8])),
    )
    rows = data.draw(st.integers(1, 3))
    decodes = data.draw(st.booleans())
    counts = [1 if decodes else data.draw(st.integers(0, 9)) for _ in range(rows)]
    lengths = [max(1, count) + data.draw(st.integers(0, 60)) for count in counts]
    case = paged_case(
        heads, lengths, counts,
        block_size=data.draw(st.sampled_from([1, 5, 16, 32])), seed=rows,
    )  # fmt: skip
    tiling = Tiling(16, 16, data.draw(st.sampled_from([1, 3])), 4, 2)
    reach = data.draw(st.sampled_from([None, "window", "chunk"]))
    mask = {
        **({} if reach is None else {reach: data.draw(st.integers(1, 60))}),
        "positions": case.positions if reach == "chunk" else None,
        "soft_cap": data.draw(st.sampled_from([None, 2.0])),
        "sinks": torch.linspace(-1, 2, heads.query, device=DEVICE)
        if data.draw(st.booleans())
        else None,
    }
    assert_same(run(case, tiling, **mask), case.reference(**mask))


@pytest.mark.parametrize("counts", [[1, 1], [3, 5]], ids=["decode", "ragged"])
@pytest.mark.parametrize("splits", [1, 2])
def test_windows_chunks_soft_caps_and_sinks(counts: list[int], splits: int) -> None:
    heads = Heads(4, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [50, 9], counts, block_size=8)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], device=DEVICE)
    tiling = Tiling(16, 16, splits, 4, 2)
    plain = run(case, tiling)
    chunk = {"chunk": 48, "positions": case.positions}
    masks: list[dict[str, Any]] = [{"window": 20}, chunk, {"soft_cap": 1.0}, {"sinks": sinks}]
    for mask in masks:
        got = run(case, tiling, **mask)
        assert_same(got, case.reference(**mask))
        assert not torch.allclose(got, plain)


def test_pages_behind_a_window_may_be_left_out() -> None:
    heads = Heads(4, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [50, 33], [2, 1], block_size=8)
    expected = case.reference(window=10)
    # The first queries are at 48 and 32: they see from 39 and from 23 on.
    pages = case.pages.page_indices
    case.pages = Pages(
        query_start=case.pages.query_start,
        kv_length=int32([50 - 32, 33 - 16]),
        page_indptr=int32([0, 3, 6]),
        page_indices=torch.cat([pages[4:7], pages[9:12]]),
    )
    assert_same(run(case, SMALL, window=10), expected)
    assert_same(case.reference(window=10), expected)


def test_pages_behind_a_chunk_may_be_left_out() -> None:
    heads = Heads(4, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [50, 33], [4, 1], block_size=8)
    mask = {"chunk": 24, "positions": case.positions}
    expected = case.reference(**mask)
    assert case.positions.tolist() == [46, 47, 48, 49, 32]
    # The first row's queries are of two chunks, the first of which begins at 24.
    pages = case.pages.page_indices
    case.pages = Pages(
        query_start=case.pages.query_start,
        kv_length=int32([50 - 24, 33 - 16]),
        page_indptr=int32([0, 4, 7]),
        page_indices=torch.cat([pages[3:7], pages[9:12]]),
    )
    for splits in (1, 2):
        assert_same(run(case, Tiling(16, 16, splits, 4, 2), **mask), expected)
    assert_same(case.reference(**mask), expected)


@pytest.mark.parametrize("dim", [64, 128, 512])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FLOAT8], ids=str)
def test_tilings_of_real_heads(dim: int, kv_dtype: torch.dtype) -> None:
    heads = Heads(8, 2, dim, torch.bfloat16, kv_dtype)
    for lengths, counts in (([200, 1], [1, 1]), ([150, 33], [40, 0])):
        case = paged_case(heads, lengths, counts)
        one = case.one_query
        tiling = tiling_for(
            heads, 2, sum(counts), one_query=one, context=256, processors=3
        )  # fmt: skip
        assert_same(run(case, tiling), case.reference())


def test_padding_of_a_step_changes_nothing() -> None:
    heads = Heads(4, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [37, 20], [3, 1])
    expected = case.reference()
    # Rows without tokens, and tokens without rows.
    case.lengths += [0, 0]
    case.counts += [0, 0]
    case.pages = Pages(
        query_start=int32([0, 3, 4, 4, 4]),
        kv_length=int32([37, 20, 0, 0]),
        page_indptr=int32([0, 3, 5, 5, 5]),
        page_indices=case.pages.page_indices,
    )
    case.queries = torch.cat([case.queries, case.queries.new_ones(3, 4, 16)])
    for splits in (1, 2):
        got = run(case, Tiling(16, 16, splits, 4, 2))
        assert_same(got[:4], expected)


def test_rows_that_pad_a_decoding_step_change_nothing() -> None:
    heads = Heads(4, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [37, 20, 1, 1], [1, 1, 1, 1])
    # A graph's launch for 4 rows of a step with 2: the others look at the first slot of page 0.
    case.pages.page_indices[-2:] = 0
    alone = paged_case(heads, [37, 20], [1, 1])
    alone.queries, alone.keys, alone.values = case.queries[:2], case.keys, case.values
    alone.pages.page_indices[:] = case.pages.page_indices[:-2]
    assert_same(run(case, SMALL)[:2], alone.reference())


@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 0, 2]], ids=["decode", "ragged"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_shared_prefix_attended_once_changes_nothing(counts: list[int], splits: int) -> None:
    heads = Heads(6, 2, 16, torch.float32, torch.float32)
    case = paged_case(heads, [37, 49, 70], counts, block_size=8, shared_pages=4)
    shared = torch.tensor([32], dtype=torch.int32, device=DEVICE)
    own, prefix = (Tiling(16, 16, splits, 4, 2) for _ in range(2))
    assert_same(run(case, own, shared=shared, prefix=prefix), case.reference())
    # A step of the same graph that shares less; and rows that end within what others share.
    shared.fill_(8)
    assert_same(run(case, own, shared=shared, prefix=prefix), case.reference())
    shared.fill_(32)
    case.pages.kv_length[1] = 1
    assert not run(case, own, shared=shared, prefix=prefix).isnan()[: counts[0]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_reference_is_what_rust_computes(dtype: torch.dtype) -> None:
    heads, size, counts = Heads(6, 2, 16, dtype, dtype), 8, [3, 1, 12]
    case = paged_case(heads, [37, 1, 12], counts, block_size=size)
    pages = {name: column.cpu() for name, column in vars(case.pages).items()}
    indptr, starts = pages["page_indptr"].tolist(), pages["query_start"].tolist()
    slots, positions, rows = [], [], []
    for row, (length, count) in enumerate(zip(case.lengths, counts, strict=True)):
        for position in range(length - count, length):
            page = int(pages["page_indices"][indptr[row] + position // size])
            slots.append(page * size + position % size)
            positions.append(position)
    flat = [cache.cpu().nan_to_num().flatten(0, 1) for cache in (case.keys, case.values)]
    for token, slot in enumerate(slots):
        mine = [case.queries[token].cpu(), flat[0][slot], flat[1][slot]]
        rows.append(torch.cat([each.flatten() for each in mine]))
    blocks = len(case.keys)
    keys, values = (cache.view(blocks, size, heads.kv, heads.dim) for cache in flat)
    context = max(case.lengths)
    angles = torch.cat((torch.ones(context, 8), torch.zeros(context, 8)), dim=1)  # no rotation
    out = torch.zeros(len(slots), heads.query * heads.dim, dtype=dtype)
    sinks = torch.linspace(-1, 2, heads.query)
    header = np.zeros(len(step_numbers()), np.int64)
    header[step_numbers()["num_rows"]], header[step_numbers()["num_tokens"]] = (
        len(counts),
        len(slots),
    )
    with run_once(CpuKernels(1), 0) as program:
        program.attend(
            CpuStep(
                header,
                np.array(positions, np.int32),
                np.array(slots, np.int32),
                *(pages[name].numpy() for name in ("query_start", "kv_length")),
                *(pages[name].numpy() for name in ("page_indptr", "page_indices")),
            ),
            cpu_tensor(torch.stack(rows)),
            cpu_tensor(angles),
            cpu_tensor(keys.permute(0, 2, 3, 1).contiguous()),
            cpu_tensor(values.permute(0, 2, 1, 3).contiguous()),
            cpu_tensor(out),
            heads.query,
            case.scale,
            window=9,
            soft_cap=3.0,
            sinks=cpu_tensor(sinks),
        )
    assert starts[-1] == len(out)
    right = case.reference(window=9, soft_cap=3.0, sinks=sinks.to(DEVICE))
    assert_same(right.cpu().flatten(1), out)


def test_parts_take_memory() -> None:
    case = paged_case(Heads(2, 1, 16, torch.float32, torch.float32), [20], [1])
    given: dict[str, Any] = {"rows": 1, "one_query": True, "scale": 1.0}
    given["tiling"] = Tiling(16, 16, 2, 4, 2)
    few = Parts(torch.zeros(2 * 2 * 16 - 1), torch.zeros(4))
    out = torch.zeros_like(case.queries)
    for parts in (None, few):
        with pytest.raises(ValueError, match="memory"):
            attention(case.queries, case.keys, case.values, case.pages, out, parts=parts, **given)


@given(data=st.data())
def test_launches_fit_memory_and_processors(data: st.DataObject) -> None:
    kv_heads = data.draw(st.sampled_from([1, 2, 8]))
    dtype = data.draw(st.sampled_from(DTYPES))
    heads = Heads(
        kv_heads * data.draw(st.sampled_from([1, 3, 4, 7, 8, 16])),
        kv_heads,
        data.draw(st.sampled_from([16, 64, 80, 128, 256])),
        dtype,
        data.draw(st.sampled_from([dtype, FLOAT8])),
    )
    rows = data.draw(st.integers(1, 300))
    one_query = data.draw(st.booleans())
    tokens = rows if one_query else data.draw(st.integers(1, 9000))
    context, processors = data.draw(st.integers(1, 40_000)), data.draw(st.integers(1, 140))
    tiling = tiling_for(
        heads, rows, tokens, one_query=one_query, context=context, processors=processors
    )
    prefix = prefix_tiling_for(heads, tokens, context=context, processors=processors, splits=5)
    assert 1 <= prefix.splits <= 5
    for cut in (tiling, prefix):
        assert power_of_two(cut.rows) == cut.rows >= max(16, heads.group)
        assert power_of_two(cut.keys) == cut.keys >= 16
        # Queries, and as many keys and values as are in flight.
        dim = power_of_two(heads.dim)
        loads = 4 * cut.keys * dim * heads.kv_dtype.itemsize
        assert cut.rows * dim * heads.dtype.itemsize + loads <= 227 * 1024
    assert 1 <= tiling.splits <= max(1, -(-context // 128))
    if tiling.splits > 1:
        assert tokens * heads.query * tiling.splits <= parts_size(processors)


def test_few_rows_are_cut_and_many_are_not() -> None:
    heads = Heads(32, 8, 128, torch.bfloat16, torch.bfloat16)

    def splits(rows: int, tokens: int, one_query: bool = True) -> int:
        return tiling_for(
            heads, rows, tokens, one_query=one_query, context=8192, processors=132
        ).splits

    assert [splits(rows, rows) for rows in (1, 8, 64, 256)] == [49, 6, 1, 1]
    assert splits(1, 5, one_query=False) > 8  # drafts of one sequence
    assert splits(1, 4096, one_query=False) == 1
