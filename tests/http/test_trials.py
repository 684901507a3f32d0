"""Workers try their suspected requests one after the other, and go on together."""

import pytest

from pyengine.http.serving.trials import Trials
from pyengine.placement.engine_messages import GoOn, Up
from pyengine.queues import EngineInfo

INFO = EngineInfo(
    max_context=8, vocab_size=8, num_blocks=8, device="cpu", max_sequences=1, max_tokens_per_step=8
)


@pytest.fixture
def sent() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def trials(sent: list[tuple[int, str]]) -> Trials:
    def send(worker: int, message: Up | GoOn) -> None:
        sent.append((worker, type(message).__name__))

    return Trials(send)


def test_one_worker_after_the_other_then_all(trials: Trials, sent: list[tuple[int, str]]) -> None:
    trials.up(INFO, [0, 1])
    assert sent == [(0, "Up")]
    trials.cleared(1)  # not its turn
    assert sent == [(0, "Up")]
    trials.cleared(0)
    assert sent == [(0, "Up"), (1, "Up")]
    assert not trials.over.is_set()
    trials.cleared(1)
    assert sorted(sent[2:]) == [(0, "GoOn"), (1, "GoOn")]
    assert trials.over.is_set()


def test_a_death_of_the_engine_begins_anew(trials: Trials, sent: list[tuple[int, str]]) -> None:
    trials.up(INFO, [0, 1])
    trials.down()
    trials.cleared(0)  # sent before it heard of the death
    assert sent == [(0, "Up")]
    trials.up(INFO, [0, 1])
    trials.cleared(0)
    trials.cleared(1)
    assert sorted(sent[3:]) == [(0, "GoOn"), (1, "GoOn")]


def test_workers_that_die_and_come_hold_nothing_up(
    trials: Trials, sent: list[tuple[int, str]]
) -> None:
    trials.up(INFO, [0, 1])
    trials.left(0)
    assert sent == [(0, "Up"), (1, "Up")]
    trials.joined(0)
    trials.cleared(1)
    assert sent[2:] == [(0, "Up")]
    trials.cleared(0)
    assert sorted(sent[3:]) == [(0, "GoOn"), (1, "GoOn")]
    trials.joined(2)
    trials.cleared(2)
    assert sent[5:] == [(2, "Up"), (2, "GoOn")]
