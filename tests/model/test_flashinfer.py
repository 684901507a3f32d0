"""Plans for FlashInfer: the right page tables, before each run, and none that is overwritten."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer import workspace
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.flashinfer.page_tables import last_page_len
from tests.model.fake_flashinfer import Device
from tests.model.flashinfer_bench import BLOCKS, FLOAT8_CACHE, LONG, Bench, all_calls
from tests.model.paged_steps import (
    Step,
    fill,
    layer_of,
    layout_of,
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


def test_graphs_have_kernels_that_cut_the_keys() -> None:
    bench = Bench(**LONG)
    bench.launch([9, 90], [1, 80], variant="ragged", bucket=(4, 128))
    bench.launch([9, 30], [1, 1], bucket=(2, 2))
    bench.check()
    assert {backend for _, backend, _ in kernels(bench)} == {"fa2"}


GROUPS: dict[str, Any] = {"num_heads": 8}
"""As many query heads for a key that decodes take tensor cores."""


def plan_often(bench: Bench) -> Counter[str]:
    """Steps of all kinds, several in flight; how often wrappers were made, planned and ran."""
    for rows in (2, 3, 2, 4):
        for bucket in (None, (4, 4)):
            bench.launch([9, 30, 7, 12][:rows], [1] * rows, bucket=bucket)
        for bucket in (None, (4, 128)):
            bench.launch([9, 99, 88, 12][:rows], [1, 90, 20, 3][:rows], bucket=bucket)
        bench.check()
    return Counter(name.partition(".")[2] for name, _ in bench.device.calls)


@pytest.mark.parametrize("spec", [{}, GROUPS, FLOAT8_CACHE], ids=str)
def test_wrappers_plan_every_step(spec: dict[str, Any]) -> None:
    counts = plan_often(Bench({}, {"window": 5}, **LONG | spec))
    assert counts["plan"] == counts["run"] > counts["init"]


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


def test_variants_of_other_backends_are_taken_for_its_own() -> None:
    bench = Bench({}, {"window": 5}, **LONG)
    for bucket in (None, (4, 128)):
        for variant in ("mixed", "prompts", "ragged_cascade"):
            bench.launch([9, 99], [1, 90], variant=variant, bucket=bucket)
    for bucket in (None, (4, 4)):
        bench.launch([13, 20], [1, 1], variant="decode_cascade", bucket=bucket)
    bench.check()


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
    plans = [given["window_left"] for name, given in bench.device.calls if name.endswith("plan")]
    assert set(plans) == {-1, 4}
