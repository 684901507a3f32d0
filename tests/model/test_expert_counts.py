"""Counts of experts come from a device that is at work without a wait for it."""

from collections.abc import Sequence

import torch

from pyengine.model.torch.layers.experts.counts import ExpertCounts
from pyengine.telemetry.experts import ExpertLoad
from tests.late_device import LateQueue


class Layer:
    """Experts that tokens are sent to."""

    def __init__(self, queue: LateQueue, experts: int) -> None:
        self.routed = torch.zeros(experts, dtype=torch.int64)
        self._queue = queue

    def send(self, tokens: Sequence[int]) -> None:
        with self._queue.at_once():
            sent = torch.tensor(tokens)
        with self._queue.working():
            self.routed.add_(sent)


def test_steps_in_flight_are_not_waited_for() -> None:
    queue = LateQueue()
    first, second = Layer(queue, 3), Layer(queue, 2)
    counts = ExpertCounts({1: first, 4: second}, queue)

    def read(*, idle: bool) -> list[list[int]]:
        loads = counts.read(idle=idle)
        assert [load.layer for load in loads] == [1, 4]
        return [load.tokens for load in loads]

    first.send([2, 0, 1])
    assert read(idle=False) == [[0, 0, 0], [0, 0]]
    assert read(idle=False) == [[0, 0, 0], [0, 0]]
    assert (queue.done, queue.waited) == (0, 0)
    queue.finish()
    second.send([5, 7])
    # The copy is of the time when it was asked for.
    assert read(idle=False) == [[2, 0, 1], [0, 0]]
    assert queue.waited == 0
    assert read(idle=True) == [[2, 0, 1], [5, 7]]
    first.send([0, 0, 9])
    counts.forget()
    assert read(idle=False) == [[0, 0, 0], [0, 0]]
    first.send([1, 1, 1])
    assert read(idle=True) == [[1, 1, 1], [0, 0]]


def test_models_without_experts_have_no_counts() -> None:
    counts = ExpertCounts({}, LateQueue())
    counts.forget()
    assert counts.read(idle=True) == counts.read(idle=False) == []


def test_imbalance_is_of_the_busiest() -> None:
    load = ExpertLoad(0, [1, 3, 0, 4])
    assert load.imbalance == 2.0
    assert load.by_rank(2).tokens == [4, 4]
    assert load.by_rank(2).imbalance == 1.0
    assert ExpertLoad(0, [0, 0]).imbalance == 0.0
