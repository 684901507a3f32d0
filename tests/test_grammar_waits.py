"""Grammars on a machine that has little time for them: none is refused for that."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import OverloadedError
from pyengine.grammar import json_schema
from tests.answers import assert_nothing_is_left

BURNERS = 8
# Less than the compilations take on such a machine by the clock, more than they take of its time.
TIMEOUT_S = 1.0
ANSWER = SamplingParams(seed=1, max_tokens=4)


def chained(conditions: int, number: int) -> dict[str, Any]:
    """An if/then for each of some properties, which takes tenths of a second."""
    rules = [
        {
            "if": {"properties": {f"p{at}": {"const": True}}, "required": [f"p{at}"]},
            "then": {"required": [f"q{at}"]},
        }
        for at in range(conditions)
    ]
    named: dict[str, Any] = {f"{name}{at}": {} for at in range(conditions) for name in "pq"}
    return {"title": str(number), "type": "object", "properties": named, "allOf": rules}


@pytest.fixture
def busy() -> Iterator[None]:
    """Processes that take all the time of two cores."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNERS)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_busy_machine_refuses_no_grammar_for_good(busy: None) -> None:
    """A request may be told to come again; what it waited for is compiled meanwhile, and kept."""
    told: list[tuple[int, str, bool]] = []

    async def answered(number: int) -> str:
        grammar = json_schema(chained(7, number))
        while True:
            try:
                return (await engine.generate("Go", ANSWER, grammar=grammar)).finish_reason
            except OverloadedError as error:
                told.append((error.status, error.message[:10], error.retry_after is not None))

    engine = AsyncEngine(
        device="simulated", simulated_step_ms=1.0, mode="server", grammar_timeout_s=TIMEOUT_S
    )
    async with engine:
        ends = await asyncio.gather(*(answered(number) for number in range(4)))
        report = await assert_nothing_is_left(engine)
    assert set(ends) <= {"stop", "length"}
    assert set(told) <= {(503, "the machin", True), (503, "too many g", True)}
    assert report["grammar_timeouts"] == 0
    # Each is compiled once, however often it was asked for.
    assert report["grammar_compilations"] == 4
