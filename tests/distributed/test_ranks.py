"""Ranks in processes: they end with the engine, and the engine with them, by name."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import EngineDeadError, ModelLoadError, PyengineError
from pyengine.placement import PlacementName
from pyengine.placement.process import ProcessPlacement
from tests.programs import wait_for_end

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=12)
QUESTION = "What is the capital of France?"


def shared(placement: PlacementName = "thread") -> AsyncEngine:
    return AsyncEngine(tensor_parallel=2, device="cpu", threads=1, placement=placement)


def ranks(engine: AsyncEngine) -> list[int]:
    """The processes of rank 0 and rank 1."""
    return [int(pid) for pid in re.findall(r"\d+", engine.info.notes["ranks"])[1:]]


async def test_two_processes_answer_as_one_and_end_with_the_engine() -> None:
    told: list[tuple[int, int]] = []
    engine = shared()
    await engine.start(lambda done, total: told.append((done, total)))
    mine, other = ranks(engine)
    assert mine == os.getpid()
    answer = await engine.generate(QUESTION, SHORT)
    await engine.close()
    await wait_for_end(other)
    async with AsyncEngine(device="cpu") as alone:
        assert (await alone.generate(QUESTION, SHORT)).token_ids == answer.token_ids
    assert told == sorted(told)
    assert told[-1][0] <= told[-1][1]


@pytest.mark.slow
async def test_a_rank_that_is_killed_ends_the_engine_by_name() -> None:
    async with shared() as engine:
        _, other = ranks(engine)
        generation = engine.generate(QUESTION, LONG)
        await anext(aiter(generation))
        os.kill(other, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"rank 1 \(process {other}\) ended: -9"):
            await generation
        await asyncio.wait_for(engine.dead.wait(), 30)
        assert "rank 1" in str(engine.failure)


@pytest.mark.slow
async def test_an_idle_engine_ends_with_a_rank_too() -> None:
    async with shared() as engine:
        _, other = ranks(engine)
        await engine.generate(QUESTION, SHORT)
        os.kill(other, signal.SIGKILL)
        await asyncio.wait_for(engine.dead.wait(), 30)
        with pytest.raises(EngineDeadError, match="rank 1"):
            await engine.generate(QUESTION, SHORT)


@pytest.mark.slow
async def test_in_a_process_the_engine_is_started_anew_and_answers_go_on() -> None:
    async with shared("process") as engine:
        mine, other = ranks(engine)
        placement = engine.placement
        assert isinstance(placement, ProcessPlacement)
        assert placement.child is not None
        assert mine == placement.child.process.pid
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        undisturbed = await engine.generate(QUESTION, params)
        generation = engine.generate(QUESTION, params)
        await anext(aiter(generation))
        os.kill(other, signal.SIGKILL)
        assert (await generation).token_ids == undisturbed.token_ids
        # And the other way round: a rank does not outlive the engine's process.
        await asyncio.wait_for(engine.report(), 60)
        mine, other = ranks(engine)
        os.kill(mine, signal.SIGKILL)
        await wait_for_end(other)


Plant = Callable[[str], None]


@pytest.fixture
def in_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Runs a line of Python as each rank's process starts, and nowhere else."""

    def plant(line: str) -> None:
        text = f"import sys\nif 'pyengine.distributed.rank_main' in sys.orig_argv:\n    {line}\n"
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return plant


# What a file of weights is mapped by becomes a call that ends with what is written behind this.
MAPPING = (
    "import pyengine.model.weights.mapped as m; from types import SimpleNamespace as N; "
    "m.mmap = N(ACCESS_COPY=0, mmap=lambda *a, **k: "
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", EngineDeadError, r"rank 1 \(process \d+\) ended"),
        (
            f"{MAPPING}(_ for _ in ()).throw(OSError('the disk is gone')))",
            ModelLoadError,
            "rank 1: cannot read the weights in .*: the disk is gone",
        ),
    ],
)
async def test_a_rank_that_cannot_start_is_named(
    line: str, kind: type[PyengineError], message: str, in_ranks: Plant
) -> None:
    in_ranks(line)
    engine = shared()
    with pytest.raises(kind, match=message):
        await engine.start()
    await engine.close()


@pytest.mark.slow
async def test_a_rank_that_hangs_as_it_starts_is_ended_and_named(
    in_ranks: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_ranks(f"import time; {MAPPING}time.sleep(1e6))")
    monkeypatch.setattr("pyengine.distributed.ranks.SILENCE_S", 8.0)
    engine = shared()
    with pytest.raises(
        EngineDeadError, match=r"rank 1 \(process \d+\) hangs: .* for 8 s"
    ) as raised:
        await engine.start()
    (pid,) = re.findall(r"process (\d+)", str(raised.value))
    await wait_for_end(int(pid))
    await engine.close()
