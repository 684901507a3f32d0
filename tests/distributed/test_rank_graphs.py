"""Ranks keep the same graphs, whatever a capture takes on each of them, and whichever fails."""

from typing import Any

import pytest

from pyengine.distributed.group import TorchGroup
from pyengine.model.torch.device.graphs import Graphs
from tests.distributed.thread_ranks import together
from tests.table_runner import run, table_runner
from tests.torch_devices import RecordingCapturer

STEPS = [(3, 1), (5, 1), (3, 2), (7, 1)] * 8


def served(group: TorchGroup, size: int, *, fails: bool = False) -> tuple[list[Any], set[Any]]:
    """What a rank's model was called for, and the graphs that it keeps."""
    runner, model = table_runner(graphs=1 << 30)
    graphs = runner.graphs = Graphs(
        RecordingCapturer(size, log=model.log, fails=fails), 100, lambda size: -group.least(-size)
    )
    graphs.on_evict = runner._on_graph_evicted
    for rows, each in STEPS:
        run(runner, rows, each)
    assert graphs.used <= graphs.limit
    calls = [entry for entry in model.log if entry == "capture" or entry[0] == "forward"]
    return calls, set(graphs._kept)


@pytest.mark.parametrize("size", [10, 30, 200])
def test_a_capture_takes_what_it_takes_where_it_takes_most(size: int) -> None:
    first, second = together(2, lambda group: served(group, (10, size)[group.rank]))
    assert first == second
    assert first[0].count("capture") >= 4
    assert len(first[1]) == {10: 5, 30: 3, 200: 0}[size]


def test_graph_that_one_rank_cannot_capture_is_kept_by_none() -> None:
    first, second = together(2, lambda group: served(group, 10, fails=group.rank == 1))
    assert first == second
    assert first[1] == set()
