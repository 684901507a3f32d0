"""Streams that wait are kept alive by comments, which clients skip."""

import asyncio
import json

import httpx
import openai
import pytest

from pyengine.errors import OverloadedError
from pyengine.http.limits import Limits
from pyengine.http.streams import event_stream
from tests.http.fake_engine import ANSWER, FakeEngine

BODY = {"model": "org/fake", "prompt": "hi", "stream": True}
COMMENT = ": keep-alive"


@pytest.fixture
def limits() -> Limits:
    return Limits(keep_alive_seconds=0.02)


async def test_a_stream_that_waits_is_kept_alive(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold_after = 2
    async with http.stream("POST", "/v1/completions", json=BODY) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(20):
            for _ in range(2):
                while await anext(lines) != COMMENT:
                    pass
        engine.release()
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("limits", [Limits(keep_alive_seconds=0.5)])
async def test_begun_stream_waits_one_interval(
    http: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has not begun waits three, for a refusal's own status."""
    monkeypatch.setattr(event_stream, "PATIENCE", 1000)
    engine.hold_after = 2
    async with http.stream("POST", "/v1/completions", json=BODY) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(20):
            while await anext(lines) != COMMENT:
                pass
        engine.release()


async def test_clients_skip_the_comments(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold_after = 0
    answering = asyncio.create_task(
        client.completions.create(model="org/fake", prompt="hi", stream=True)
    )
    chunks = await asyncio.wait_for(answering, 20)  # a comment begins it
    engine.release()
    assert "".join([chunk.choices[0].text async for chunk in chunks]) == ANSWER[:16]


async def test_a_failure_behind_a_comment_is_an_event(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold_after = 0
    engine.fail_after = (0, OverloadedError("full"))
    async with http.stream("POST", "/v1/completions", json=BODY) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == COMMENT
        engine.release()
        rest = "\n".join([line async for line in lines])
    assert '"code":"overloaded"' in rest
    assert "[DONE]" not in rest


async def test_lines_of_json_have_no_comments(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.hold_after = 2
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    async with http.stream("POST", "/api/chat", json=chat) as waits:
        async with http.stream("POST", "/v1/completions", json=BODY) as kept_alive:
            async with asyncio.timeout(20):
                events = kept_alive.aiter_lines()
                for _ in range(2):
                    while await anext(events) != COMMENT:
                        pass
            engine.release()
        found = [json.loads(line) async for line in waits.aiter_lines()]
    assert found[-1]["done"]
    assert "".join(line["message"]["content"] for line in found) == ANSWER
