"""Alternatives of one answer share its grammar: no mask is made twice."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine
from tests.answers import assert_nothing_is_left

N = 64
MOST = 40
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "values": {"type": "array", "items": {"type": "integer"}, "minItems": 50, "maxItems": 50}
    },
    "required": ["values"],
    "additionalProperties": False,
}


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    simulated: Any = {"device": "simulated", "simulated_step_ms": 0.2}
    async with AsyncEngine(mode="server", **simulated) as engine:
        yield engine


async def test_masks_are_made_once_for_all(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=engine.model_name,
        messages=[{"role": "user", "content": "Fifty numbers."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "values", "strict": True, "schema": SCHEMA},
        },
        n=N,
        temperature=0,
        max_tokens=MOST,
    )
    assert len(answer.choices) == N
    assert len({choice.message.content for choice in answer.choices}) == 1
    report = await assert_nothing_is_left(engine)
    assert report["grammar_compilations"] == 1
    # Each token of each choice has asked for its mask, or was certain ...
    asked = report["grammar_mask_hits"] + report["grammar_mask_misses"]
    assert asked + report["certain_tokens"] >= N * MOST
    # ... which was made for the first of them.
    assert report["grammar_mask_misses"] <= MOST
