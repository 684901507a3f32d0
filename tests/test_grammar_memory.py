"""The memory of the engine's process under two hundred grammars made to hurt."""

import asyncio
import re
from pathlib import Path

import pytest

from pyengine import AsyncEngine
from pyengine.grammar import Grammar, json_schema
from tests.answers import assert_nothing_is_left
from tests.hostile_grammars import hostile, outcome
from tests.test_placement import engine_process

# MiB above the engine's memory after its first answers.
MOST_AT_PEAK = 512
MOST_LATER = 64
LATER_S = 10
AT_ONCE = 12


def resident(pid: int, *fields: str) -> float:
    """The sum of fields of ``/proc/pid/status``, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = [re.search(rf"{field}:\s+(\d+) kB", status) for field in fields]
    return sum(int(each[1]) for each in found if each is not None) / 1024


def own(pid: int) -> float:
    """All memory but that which is shared with other processes: the queues have a fixed size."""
    return resident(pid, "RssAnon", "RssFile")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_memory_is_bounded_and_given_back() -> None:
    engine = AsyncEngine(
        device="simulated",
        simulated_step_ms=1.0,
        mode="server",
        placement="process",
        grammar_timeout_s=1.0,
    )
    async with engine:
        await outcome(engine, lambda: json_schema({"type": "object", "maxProperties": 3}))
        pid = engine_process(engine)
        fresh, fresh_own = resident(pid, "VmRSS"), own(pid)
        todo = list(hostile())
        assert len(todo) > 180
        ends: dict[str, str] = {}

        async def end_of(grammar: Grammar) -> str:
            return await outcome(engine, lambda: grammar)

        async def ask() -> None:
            while todo:
                name, grammar = todo.pop(0)
                ends[name] = await end_of(grammar)

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        assert engine_process(engine) == pid
        assert resident(pid, "VmHWM") < fresh + MOST_AT_PEAK
        report = await engine.report()
        while report["grammar_abandoned"]:
            report = await engine.report()
        async with asyncio.timeout(LATER_S):
            while own(pid) > fresh_own + MOST_LATER:
                await engine.report()
        report = await engine.report()
        await assert_nothing_is_left(engine)
    works = [name for name, end in ends.items() if end in ("stop", "length")]
    assert 20 < len(works) < len(ends)
    assert report["finished_error"] == 0
