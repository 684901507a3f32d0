"""Answers that are closed within ``max_tokens``, over HTTP: as large as the demo model holds."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer
from tests.answers import assert_nothing_is_left

KEYS = [f"k{at}" for at in range(60)]
OBJECT = {
    "type": "object",
    "properties": {key: {"type": "integer"} for key in KEYS},
    "required": KEYS,
}
SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "keys in any order": (
        {"type": "object", "properties": {"a": OBJECT, "b": OBJECT}, "required": ["a", "b"]},
        "any",
    ),
    "different items": (
        {"type": "array", "items": {"type": "string"}, "minItems": 200, "uniqueItems": True},
        "schema",
    ),
    "a long string": ({"type": "string", "minLength": 1_200}, "schema"),
    "strings whose characters are counted": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "maxLength": 1_000_000},
                "b": {"type": "string", "minLength": 1_100, "maxLength": 5_000},
            },
            "required": ["a", "b"],
        },
        "schema",
    ),
    "a long constant": ({"const": "long " * 500}, "schema"),
    "many items": ({"type": "array", "items": {"type": "integer"}, "minItems": 400}, "schema"),
}


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with AsyncEngine(mode="server", max_sequences=64) as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300
        ) as client:
            yield client
        await server.stop(0)
        await assert_nothing_is_left(engine)


async def asked(
    client: openai.AsyncOpenAI, schema: Any, key_order: str, max_tokens: int, n: int
) -> list[tuple[str | None, str]]:
    """Finish reason and text of each choice."""
    model = (await client.models.list()).data[0].id
    fields: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Hi"}],
        "seed": 1,
        "n": n,
        "max_tokens": max_tokens,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        },
        "extra_body": {
            "structured_outputs": {"close_within_max_tokens": True, "key_order": key_order}
        },
    }
    made = await client.chat.completions.create(**fields)
    return [(choice.finish_reason, choice.message.content or "") for choice in made.choices]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
async def test_alternatives_end_within_the_least_budget(
    client: openai.AsyncOpenAI, name: str
) -> None:
    """The refusal of a smaller one says what that is."""
    schema, key_order = SCHEMAS[name]
    with pytest.raises(openai.BadRequestError, match="shortest answer") as refused:
        await asked(client, schema, key_order, 8, 3)
    least = int(re.findall(r"has (\d+) tokens", str(refused.value))[0])
    for spare in (0, 30):
        choices = await asked(client, schema, key_order, least + spare, 3)
        assert len(choices) == 3
        for reason, text in choices:
            assert reason == "stop", text
            assert Draft202012Validator(schema).is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]{60000}$"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
    ],
)
async def test_a_shortest_answer_that_is_not_found_is_refused(
    client: openai.AsyncOpenAI, schema: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot be closed within max_tokens"):
        await asked(client, schema, "schema", 100, 1)
