"""``strict: false`` over HTTP: all that has a valid value is taken, what is left out is said."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer
from tests.grammar.schema_suite import Group, read
from tests.reference import SCHEMA_SUITE

# A keyword and its place in the schema.
NAMED = re.compile(r"'[$A-Za-z]+' at #|`false` at #|choice at #")


async def _asked(
    http: httpx.AsyncClient, schema: Any, strict: bool, **options: str
) -> httpx.Response:
    made = {"name": "x", "schema": schema, "strict": strict}
    return await http.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "?"}],
            "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": made},
            "structured_outputs": options,
        },
    )


async def _checked(http: httpx.AsyncClient, group: Group) -> bool:
    """Whether the schema is refused where it is strict."""
    strict = await _asked(http, group.schema, True)
    answer = await _asked(http, group.schema, False)
    assert strict.status_code in (200, 400), (group, strict.text)
    for said in (strict, answer):
        if said.status_code == 400:
            assert NAMED.search(said.json()["error"]["message"]), (group, said.text)
    if answer.status_code == 400:
        assert "allows no value" in answer.json()["error"]["message"], (group, answer.text)
        assert not any(valid for _, _, valid in group.tests), group
        return True
    assert answer.status_code == 200, (group, answer.text)
    warnings = answer.json().get("warnings", [])
    assert all(NAMED.search(warning) for warning in warnings), (group, warnings)
    assert strict.status_code == 200 or warnings, group
    return strict.status_code == 400


async def test_too_many_keys_for_any_order_come_in_the_order_of_the_schema() -> None:
    names = [f"k{at}" for at in range(70)]
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names}
    said = "'required' at #: an object has 70; in any key order the limit is 64"
    async with AsyncEngine(device="simulated", mode="server") as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            strict = await _asked(http, schema, True, key_order="any")
            assert (strict.status_code, strict.json()["error"]["message"]) == (400, said)
            answer = await _asked(http, schema, False, key_order="any")
            assert answer.json()["warnings"] == [
                f"{said}; its keys come in the order of the schema"
            ]
            hard = {"allOf": [{"pattern": f".*{letter}.{{30}}$"} for letter in "abcdefgh"]}
            schema = {"type": "array", "items": {"type": "string", **hard}}
            refused = await _asked(http, schema, False)
            message = refused.json()["error"]["message"]
            assert message.startswith("the schema at #/items cannot be compiled: its patterns")
        await server.stop(0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_suite() -> None:
    # What a busy machine has no time for is refused as well, but not for the schema's sake.
    settings: Any = {"mode": "server", "grammar_timeout_s": 60.0}
    async with AsyncEngine(device="simulated", **settings) as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            groups = read(SCHEMA_SUITE)
            refused = 0
            for at in range(0, len(groups), 8):
                asked = (_checked(http, group) for group in groups[at : at + 8])
                refused += sum(await asyncio.gather(*asked))
        await server.stop(0)
    assert refused >= 20
