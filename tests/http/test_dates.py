"""Dates that a schema asks for are those of the calendar."""

import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


async def _asked(client: openai.AsyncOpenAI, engine: AsyncEngine, **schema: Any) -> str:
    """What the model answers, held to a schema of text."""
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "day", "schema": {"type": "string", **schema}, "strict": True},
    }
    answer = await client.chat.completions.create(
        model=engine.model_name,
        messages=[{"role": "user", "content": "What day is it?"}],
        response_format=form,
        temperature=2,
        seed=1,
        max_tokens=60,
    )
    text: str = json.loads(answer.choices[0].message.content or "")
    return text


async def test_a_day_that_is_not_there_is_not_answered(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    leap = "^(0000|1900|2023|2024)-02-29"
    assert await _asked(client, engine, format="date", pattern=leap) == "2024-02-29"
    first = await _asked(client, engine, format="date", pattern="^000[01]-")
    assert datetime.date.fromisoformat(first).year == 1
    last = await _asked(client, engine, format="date-time", pattern="^2023-02-2[89]T00:00:00Z$")
    assert last == "2023-02-28T00:00:00Z"


async def test_no_day_at_all_is_refused(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await _asked(client, engine, format="date", pattern="^0000-")
    assert refusal.value.param == "response_format"
