"""Plans for FlashInfer: the right page tables, before each run, and none that is overwritten."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer import workspace
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.flashinfer.page_tables import (
    last_page_len,
    page_tables,
    without_prefix,
)
from tests.model.fake_flashinfer import Device
from tests.model.flashinfer_bench import BLOCKS, FLOAT8_CACHE, LONG, Bench, all_calls
from tests.model.paged_steps import (
    Step,
    fill,
    layer_of,
    layout_of,
    random_table,
    spec_of,
)

ROWS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)), min_size=1, max_size=5)


@pytest.fixture(autouse=True)
def small_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "RECOMMENDED_BYTES", 4096)


@given(lengths=st.lists(st.integers(0, 99), min_size=1), page_size=st.integers(1, 17))
def test_last_pages(lengths: list[int], page_size: int) -> None:
    pages = [list(range(length))[::page_size] for length in lengths]
    right = [
        length - every[-1] if every else 0 for length, every in zip(lengths, pages, strict=True)
    ]
    assert last_page_len(np.array(lengths, np.int32), page_size).tolist() == right


@settings(deadline=None)
@given(rows=ROWS, shared=st.integers(0, 3), extra=st.integers(0, 5))
def test_tables_without_a_prefix(rows: list[tuple[int, int]], shared: int, extra: int) -> None:
    lengths = [shared * 4 + length for length, _ in rows]
    counts = [min(count, length) for length, count in rows]
    host = StepBuffers(layout_of(spec_of()))
    table = random_table(np.random.default_rng(0), lengths, 4, 100, shared)
    fill(host, lengths, counts, table)
    tables = page_tables(host, (0, len(rows)), sum(counts) + extra, 4)
    assert tables.query_start.tolist() == [0, *np.cumsum(counts), sum(counts) + extra]
    own, indices = without_prefix(tables, host.page_indices, shared * 4, 4)
    starts = own.indptr.tolist()
    left = [indices[a:b].tolist() for a, b in pairwise(starts)]
    assert left == [*[pages[shared:] for pages in table], []]
    assert own.kv_length.tolist() == [*[length for length, _ in rows], 0]
    for name in ("query_start", "indptr", "kv_length", "last_page_len"):
        assert getattr(own, name).dtype == getattr(tables, name).dtype == np.int32


def test_steps_without_graphs() -> None:
    bench = Bench()
    assert bench.launch([9, 1, 20], [1, 1, 1]) == "decode"
    assert bench.launch([9, 5, 20], [1, 5, 2]) == "ragged"
    assert bench.launch([3, 17], [1, 1]) == "decode"
    assert bench.launch([3, 17], [0, 2]) == "ragged"
    bench.check()
    names = [name for name, _ in bench.device.calls]
    steps = ["decode", "decode", "prefill", "decode", "prefill"]
    assert [name for name in names if name.endswith("run")] == [f"{name}.run" for name in steps]
    # One of each kind: prompts have another place beside decodes than alone.
    assert (names.count("decode.init"), names.count("prefill.init")) == (1, 2)


def kernels(bench: Bench) -> list[tuple[str, str, int]]:
    """Of each launch, the wrapper, the kernels that it picks on Hopper, and the longest row."""
    return [
        (name.removesuffix(".run"), given["backend"], given["longest"])
        for name, given in bench.device.calls
        if name.endswith(".run")
    ]


@pytest.mark.parametrize(
    ("decodes", "counts", "expected"),
    [
        (2, [1, 1, 90, 30], [("decode", "fa2", 1), ("prefill", "fa3", 90)]),
        (2, [1, 1, 30, 20], [("decode", "fa2", 1), ("prefill", "fa2", 30)]),
        (3, [1, 5, 3], [("prefill", "fa2", 5)]),
        (2, [5, 3, 90], [("prefill", "fa2", 5), ("prefill", "fa3", 90)]),
        (2, [5, 3, 60], [("prefill", "fa2", 60)]),
        (0, [90, 80], [("prefill", "fa3", 90)]),
        (1, [1, 1], [("decode", "fa2", 1)]),
    ],
)
def test_short_rows_do_not_go_to_kernels_for_long_ones(
    decodes: int, counts: list[int], expected: list[tuple[str, str, int]]
) -> None:
    """Kernels of FlashAttention 3 take 128 queries of a row at a time, whatever it has."""
    bench = Bench(**LONG)
    bench.launch([count + 9 for count in counts], counts, decodes=decodes)
    bench.check()
    assert kernels(bench) == expected


def test_graphs_and_prefixes_have_kernels_that_cut_the_keys() -> None:
    bench = Bench(**LONG)
    bench.launch([9, 90], [1, 80], variant="ragged", bucket=(4, 128))
    bench.launch([9, 30], [1, 1], bucket=(2, 2))
    bench.launch([13, 99, 20], [1, 80, 1], variant="ragged_cascade", shared=1)
    bench.check()
    assert {backend for _, backend, _ in kernels(bench)} == {"fa2"}
    causal = [given["causal"] for name, given in bench.device.calls if name.endswith("plan")]
    assert causal == [True, True, False, True]  # all queries see all of a prefix


GROUPS: dict[str, Any] = {"num_heads": 8}
"""As many query heads for a key that decodes take tensor cores."""


def plan_often(bench: Bench) -> Counter[str]:
    """Steps of all kinds, several in flight; how often wrappers were made, planned and ran."""
    for rows in (2, 3, 2, 4):
        for bucket in (None, (4, 4)):
            bench.launch([9, 30, 7, 12][:rows], [1] * rows, bucket=bucket)
        for bucket in (None, (4, 128)):
            bench.launch([9, 99, 88, 12][:rows], [1, 90, 20, 3][:rows], bucket=bucket)
        for bucket in (None, (8, 8)):
            lengths = [13, 20, 9, 10][:rows]
            bench.launch(lengths, [1] * rows, variant="ragged_cascade", bucket=bucket, shared=1)
        bench.check()
    return Counter(name.partition(".")[2] for name, _ in bench.device.calls)


@pytest.mark.parametrize("spec", [{}, GROUPS, FLOAT8_CACHE], ids=str)
def test_wrappers_plan_every_step(spec: dict[str, Any]) -> None:
    counts = plan_often(Bench({}, {"window": 5}, **LONG | spec))
    assert counts["plan"] == counts["run"] > counts["init"]


def tiles(bench: Bench) -> list[int]:
    return [given["tile"] for name, given in bench.device.calls if name.endswith(".run")]


MIXED = [
    ([1, 1, 1, 90], "mixed"),
    ([1, 80, 70, 3], "mixed"),
    ([200], "prompts"),
    ([65, 1, 1, 2, 3, 4, 5, 6], "prompts"),
]


@pytest.mark.parametrize("how", [{}, {"window": 5}, {"value_scale": 2.0}], ids=str)
@pytest.mark.parametrize(("counts", "variant"), MIXED)
def test_prompts_in_graphs_have_tiles_for_prompts(
    counts: list[int], variant: str, how: dict[str, Any]
) -> None:
    """With as many rows as tokens, as a bucket has; every step of the size has its graph."""
    bench = Bench(how, **LONG | GROUPS | {"max_rows": 512, "max_pages": 2048})
    decodes = counts.index(max(counts)) if variant == "mixed" else 0
    lengths = [count + 9 for count in counts]
    for _ in range(2):
        assert bench.launch(lengths, counts, bucket=(320, 320), decodes=decodes) == variant
        lengths, counts = [*lengths[:-1], lengths[-1] + 9], [*counts[:-1], counts[-1] + 2]
    bench.check()
    assert tiles(bench) == ([128, 16] if variant == "mixed" else [128]) * 2


@pytest.mark.parametrize(
    ("counts", "decodes"),
    [
        ([1, 1, 64], 2),  # a short one
        ([1, 3, 90], 2),  # drafts
        ([1, *[65] * 9], 1),  # too many
    ],
)
def test_other_steps_with_prompts_have_the_graph_of_any_rows(
    counts: list[int], decodes: int
) -> None:
    more = {"max_rows": 16, "max_tokens": 1024, "max_pages": 2048}
    bench = Bench(**LONG | more)
    host = bench.sets[0]
    fill(host, [100] * len(counts), counts, [[0] * 25] * len(counts))
    host.num_decode_rows = decodes
    bench.step.host = host
    assert bench.backend.variant(bench.step) == "ragged"


def test_a_step_of_two_segments_has_two_plans_at_once() -> None:
    bench = Bench({}, {"window": 5}, **LONG)
    for _ in range(2):
        bench.launch([9, 1, 20, 99], [1, 1, 1, 90])
        bench.launch([4, 99], [1, 95])
    bench.check()
    places = [
        wrapper._wrapper._int_workspace_buffer.data_ptr()
        for launches in bench.backend._launches.values()
        for wrapper in launches._wrappers.values()  # type: ignore[attr-defined]
    ]
    assert len(set(places)) == len(places) == 4


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(ROWS, st.integers(0, 2)), min_size=2, max_size=4))
def test_plans_in_flight_are_not_overwritten(steps: Any) -> None:
    bench = Bench()
    for rows, kind in steps:
        counts = [1 if kind == 0 else min(length, count) for length, count in rows]
        lengths = [length for length, _ in rows]
        if kind == 0:
            bench.launch(lengths, counts, bucket=(8, 8))
        elif sum(counts):
            bench.launch(lengths, counts, variant="ragged", bucket=(8, 24) if kind == 1 else None)
    if bench.pending:
        bench.check()


def test_sizes_of_graphs_have_wrappers_of_their_own() -> None:
    bench = Bench()
    for _ in range(2):
        bench.launch([9, 1], [1, 1], bucket=(2, 2))
        bench.launch([9, 1, 4], [1, 1, 1], bucket=(4, 4))
        bench.launch([9, 6], [1, 1], bucket=(2, 4))  # a decoding step in a graph with room
    bench.check()
    kinds = [name for name, given in bench.device.calls if given.get("captured")]
    assert kinds == ["decode.init", "decode.init", "prefill.init"]


def test_a_graph_that_is_given_up_takes_its_wrapper_along_once_that_was_read() -> None:
    bench = Bench()
    kinds = []
    for _ in range(2):
        for size in (2, 4):
            bench.launch([9, 1], [1, 1], bucket=(size, size))
        left = len(bench.device.queue)
        bench.backend.forget("decode", 2)
        assert len(bench.device.queue) < left  # its plan was copied, the other's is on its way
        assert bench.device.queue
        kinds.append(len(bench.backend._launches))
        bench.backend.forget("ragged", 2)
    assert kinds == [1, 1]
    bench.check()
    made = [name for name, given in bench.device.calls if given.get("captured")]
    assert made == ["decode.init"] * 3


def test_a_shared_prefix_is_a_level_of_its_own() -> None:
    bench = Bench()
    counts = [1, 1, 3]
    for bucket in (None, (8, 8), (8, 8)):
        bench.launch([13, 8, 20], counts, variant="ragged_cascade", bucket=bucket, shared=1)
        bench.launch([13, 9, 20], [1, 1, 1], variant="decode_cascade", bucket=bucket, shared=2)
        bench.check()


def test_variants_go_by_what_pays() -> None:
    bench = Bench(
        num_heads=64, num_kv_heads=64, head_dim=128, max_context=4096, max_pages=4096,
        block_size=16,
    )  # fmt: skip
    rows, shared = 8, 100
    table = random_table(np.random.default_rng(0), [shared * 16 + 5] * rows, 16, 4096, shared)
    host = bench.sets[0]
    bench.step.host = host
    fill(host, [shared * 16 + 5] * rows, [1] * rows, table)
    assert bench.backend.variant(bench.step) == "decode_cascade"
    fill(host, [shared * 16 + 5] * rows, [2, *[1] * (rows - 1)], table)
    assert bench.backend.variant(bench.step) == "ragged_cascade"
    table[3] = random_table(np.random.default_rng(1), [shared * 16 + 5], 16, 4096)[0]
    fill(host, [shared * 16 + 5] * rows, [1] * rows, table)
    assert bench.backend.variant(bench.step) == "decode"


def test_float8_caches_have_queries_of_the_model() -> None:
    spec = spec_of(dtype="bfloat16", kv_dtype="float8_e4m3fn")
    device = Device()
    backend = FlashInferAttention(spec, torch.device("cpu"), device.library())
    step: Any = Step(StepBuffers(layout_of(spec)))
    fill(step.host, [5], [1], [[3, 1]])
    backend.plan(step, backend.variant(step), 1, 1, captured=False)
    one, cache = torch.zeros(1, 4, 16), torch.zeros(BLOCKS, 4, 2, 16)
    backend.attend(step, one, cache, cache, one, 1, layer_of())
    given = dict(device.calls)["decode.plan"]
    types = [given[f"{name}_data_type"] for name in ("q", "kv", "o")]
    assert types == [torch.bfloat16, torch.float8_e4m3fn, torch.bfloat16]


@given(data=st.data())
def test_workspaces_hold_what_plans_lay_out(data: st.DataObject) -> None:
    kv_heads = data.draw(st.sampled_from([1, 2, 4, 8]))
    group = data.draw(st.sampled_from([1, 4, 7, 8, 16, 32]))
    dim = data.draw(st.sampled_from([64, 128, 256]))
    spec = spec_of(
        num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=dim, dtype="bfloat16",
        kv_dtype="float8_e4m3fn", max_rows=300, max_tokens=4096,
    )  # fmt: skip
    tokens = data.draw(st.integers(1, 512))
    rows = data.draw(st.integers(1, min(300, tokens)))
    # As FlashInfer 0.7.2 plans for graphs, on 132 processors: the row that pads counts.
    batch = rows + 1 if data.draw(st.booleans()) else rows
    tokens = rows if batch == rows else tokens
    longest = (tokens - batch + 1) * group
    tile = 128 if longest > 64 and dim < 256 else 64 if longest > 16 else 16
    parts = max(2 * 132 // kv_heads, -(-tokens * group // tile) + batch - 1)
    needed = kv_heads * group * -(-parts * tile // group) * (dim + 1) * 4 + 32
    assert workspace.workspace_bytes(spec) >= needed


def test_workspaces_of_llama() -> None:
    spec = spec_of(
        num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", kv_dtype="bfloat16",
        max_rows=256, max_tokens=8192,
    )  # fmt: skip
    assert 128 < workspace.workspace_bytes(spec) >> 20 < 160


def test_larger_graphs_than_there_is_room_for_are_refused() -> None:
    bench = Bench()
    with pytest.raises(ValueError, match="512 tokens"):
        bench.backend.plan(bench.step, "ragged", 8, 513, captured=True)


def test_calls_are_of_names_that_the_fakes_note() -> None:
    """The test on a GPU binds these to the installed library."""
    device = all_calls()
    methods = {(wrapper, method) for wrapper, method, _ in device.bound}
    assert methods == {
        (wrapper, method)
        for wrapper in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")
        for method in ("__init__", "reset_workspace_buffer", "plan", "run")
    }


def test_attend_needs_a_plan() -> None:
    bench = Bench()
    one = torch.zeros(1, 4, 16)
    with pytest.raises(RuntimeError, match="before plan"):
        bench.backend.attend(bench.step, one, bench.keys, bench.values, one, 1, layer_of())


def test_layers_of_several_kinds_have_a_plan_each() -> None:
    bench = Bench({}, {"window": 5}, {"window": 5}, {"soft_cap": 2.0})
    for bucket in (None, (4, 4), (4, 4)):
        bench.launch([9, 1, 20], [1, 1, 1], bucket=bucket)
        bench.launch([9, 6, 20], [1, 5, 2], bucket=bucket and (8, 8))
        bench.check()
    bench.launch([14, 9, 20], [1, 1, 1], variant="decode_cascade", shared=2)
    bench.check()
    plans = [given["window_left"] for name, given in bench.device.calls if name.endswith("plan")]
    assert set(plans) == {-1, 4}
