"""Which graphs are captured, kept and given up, with a capturer that remembers."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.model.torch.device.graphs import (
    CAPTURE_AFTER,
    CAPTURE_INTERVAL,
    Graphs,
    bucket,
    mixed_bucket,
)


@dataclass
class FakeGraph:
    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


@dataclass
class FakeCapturer:
    """Captures of given sizes, in turn; a size of None cannot be captured."""

    sizes: list[int | None] = field(default_factory=lambda: [10])
    captured: int = 0

    def capture(self, work: Callable[[], None]) -> tuple[FakeGraph, int]:
        size = self.sizes[self.captured % len(self.sizes)]
        self.captured += 1
        if size is None:
            raise RuntimeError("an operation that no graph takes")
        return FakeGraph(work), size


def step(graphs: Graphs, key: str, done: list[str]) -> str:
    """What the runner does with one part of a step; says how it was computed."""
    graphs.begin_step()
    if (graph := graphs.find(key)) is not None:
        graph.replay()
        return "replayed"
    done.append(key)
    if graphs.is_due(key):
        graphs.capture(key, lambda: done.append(key))
        return "captured"
    return "eager"


def test_buckets() -> None:
    sizes = sorted({bucket(count, 1000) for count in range(1, 66)})
    assert sizes == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72]
    assert bucket(13, 14) == 14
    for count in range(1, 700):
        assert count <= bucket(count, 700) <= max(count + 7, 8)


def test_sizes_of_steps_with_prompts() -> None:
    sizes = sorted({mixed_bucket(count, 512) for count in range(1, 513)})
    assert sizes == [
        *range(8, 65, 8),
        *range(80, 129, 16),
        *range(160, 257, 32),
        320,
        384,
        448,
        512,
    ]
    for count in range(1, 513):
        assert count <= mixed_bucket(count, 512) <= max(count + 7, count * 5 / 4)
    padded = sum(mixed_bucket(count, 512) for count in range(1, 513))
    assert padded / sum(range(1, 513)) < 1.09
    assert mixed_bucket(13, 14) == 14


def test_a_key_is_captured_when_it_was_asked_for_a_few_times() -> None:
    graphs, done = Graphs(FakeCapturer(), 100), list[str]()
    said = [step(graphs, "a", done) for _ in range(CAPTURE_AFTER + 2)]
    assert said == [*["eager"] * (CAPTURE_AFTER - 1), "captured", "replayed", "replayed"]
    # Every step was computed once: to capture is not to compute.
    assert done == ["a"] * (CAPTURE_AFTER + 2)


def test_captures_leave_steps_between_them() -> None:
    graphs, done = Graphs(FakeCapturer(), 1000), list[str]()
    said = [step(graphs, "abcdef"[at % 6], done) for at in range(80)]
    captures = [at for at, how in enumerate(said) if how == "captured"]
    assert len(captures) == 6
    assert min(b - a for a, b in itertools.pairwise(captures)) >= CAPTURE_INTERVAL
    assert set(said[-6:]) == {"replayed"}


def test_the_least_recently_used_is_evicted() -> None:
    graphs, done, told = Graphs(FakeCapturer(), 30), list[str](), list[Any]()
    graphs.on_evict = told.append

    def settle(key: str) -> None:
        while step(graphs, key, done) != "replayed":
            pass

    for key in "abc":
        settle(key)
    assert graphs.used == 30
    settle("a")
    settle("d")
    assert [key in graphs for key in "abcd"] == [True, False, True, True]
    assert told == ["b"]
    graphs.clear()
    assert (len(graphs), graphs.used) == (0, 0)
    assert told == ["b", "c", "a", "d"]


@pytest.mark.parametrize("size", [None, 101])
def test_graph_that_cannot_be_kept_is_tried_once(
    size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    capturer = FakeCapturer([size])
    graphs, done, told = Graphs(capturer, 100), list[str](), list[Any]()
    graphs.on_evict = told.append
    said = [step(graphs, "a", done) for _ in range(30)]
    assert "replayed" not in said
    assert capturer.captured == 1
    assert (len(graphs), graphs.used, done) == (0, 0, ["a"] * 30)
    assert told == ["a"]
    assert len(caplog.records) == 1


@given(
    asked=st.lists(st.sampled_from("abcdefgh"), max_size=300),
    sizes=st.lists(st.none() | st.integers(0, 60), min_size=1, max_size=9),
    limit=st.integers(0, 150),
)
def test_the_bound_holds_and_only_what_was_captured_is_replayed(
    asked: list[str], sizes: list[int | None], limit: int
) -> None:
    capturer = FakeCapturer(sizes)
    graphs, done = Graphs(capturer, limit), list[str]()
    sum_of_kept = 0
    for at, key in enumerate(asked):
        step(graphs, key, done)
        assert len(done) == at + 1
        assert done[-1] == key  # with or without a graph, it was this key's work
        assert graphs.used <= limit
        sum_of_kept = sum(size for _, size in graphs._kept.values())
        assert graphs.used == sum_of_kept
    assert graphs.captures <= capturer.captured <= 1 + len(asked) // CAPTURE_INTERVAL
