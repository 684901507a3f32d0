"""Stored chat completions through OpenAI's client."""

from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine.chat.template import ChatTemplate
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import CALLS, NOW, TEMPLATE, THOUGHT, WEATHER

MODEL = "org/fake"
PARTS: Any = [{"type": "text", "text": "rain?"}]
HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PARTS}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=THOUGHT + "I look.\n" + CALLS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [[], [WEATHER, NOW]])
async def test_found_again(client: openai.AsyncOpenAI, stream: bool, tools: Any) -> None:
    given: Any = {"model": MODEL, "messages": HELLO, "n": 2, "store": True, "seed": 7}
    given |= {"metadata": {"a": "b"}, "logprobs": False, **({"tools": tools} if tools else {})}
    made: Any = await client.chat.completions.create(stream=stream, **given)
    if stream:
        chunks = [chunk async for chunk in made]
        name, text = (
            chunks[0].id,
            "".join(
                choice.delta.content or ""
                for chunk in chunks
                for choice in chunk.choices
                if choice.index == 0
            ),
        )
    else:
        name, text = made.id, made.choices[0].message.content
    found: Any = await client.chat.completions.retrieve(name)
    assert found.choices[0].message.content == text
    assert len(found.choices) == 2
    assert found.choices[1].finish_reason == ("tool_calls" if tools else "stop")
    assert (found.metadata, found.seed) == ({"a": "b"}, 7)
    assert found.usage.completion_tokens > 0
    if not stream:
        assert found.choices == made.choices
        assert found.usage == made.usage
    if tools:
        assert found.tools[0]["function"]["name"] == "get_weather"
    messages = [each async for each in client.chat.completions.messages.list(name, limit=1)]
    assert [message.content for message in messages] == ["Be brief.", None]
    assert messages[1].content_parts is not None
    assert messages[1].content_parts[0].text == "rain?"  # type: ignore[union-attr]
    assert len({message.id for message in messages}) == 2


async def test_only_what_is_to_be_stored_is(client: openai.AsyncOpenAI) -> None:
    made = await client.chat.completions.create(model=MODEL, messages=HELLO)
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.retrieve(made.id)
    told = await client.chat.completions.create(model=MODEL, messages=HELLO, metadata={"a": "b"})
    assert "'metadata'" in (told.model_extra or {})["warnings"][0]
    with pytest.raises(openai.BadRequestError, match="metadata"):
        await client.chat.completions.create(
            model=MODEL, messages=HELLO, store=True, metadata={"a" * 65: "b"}
        )


async def test_listed_updated_deleted(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    names = [
        (
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, store=True, metadata={"n": f"{n % 2}", "all": "x"}
            )
        ).id
        for n in range(5)
    ]

    async def listed(**query: Any) -> list[str]:
        return [each.id async for each in client.chat.completions.list(limit=2, **query)]

    assert await listed() == names
    assert await listed(order="desc") == names[::-1]
    assert await listed(metadata={"n": "1"}) == names[1::2]
    assert await listed(metadata={"n": "1", "all": "y"}) == []
    assert await listed(model="other") == []
    assert await listed(after=names[2]) == names[3:]
    page = (await http.get("/v1/chat/completions?limit=2")).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (names[0], names[1], True)
    changed: Any = await client.chat.completions.update(names[0], metadata={"n": "1"})
    assert changed.metadata == {"n": "1"}
    assert await listed(metadata={"n": "1"}) == [names[0], *names[1::2]]
    assert await client.chat.completions.retrieve(names[0]) == changed
    gone = await client.chat.completions.delete(names[0])
    assert (gone.id, gone.deleted, gone.object) == (names[0], True, "chat.completion.deleted")
    assert await listed() == names[1:]
    asks: list[Any] = [
        client.chat.completions.retrieve(names[0]),
        client.chat.completions.delete(names[0]),
        client.chat.completions.update(names[0], metadata={}),
    ]
    for ask in asks:
        with pytest.raises(openai.NotFoundError, match="No chat completion with the id"):
            await ask


async def test_a_stream_of_the_engine_is_stored_whole(demo_model: Any) -> None:
    """Text that comes alone goes past the tasks, and is not lost to the store."""
    async with AsyncEngine() as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model=engine.model_name,
                messages=[{"role": "user", "content": "Tell me a story."}],
                stream=True,
                store=True,
                max_tokens=60,
                extra_body={"ignore_eos": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            found = await client.chat.completions.retrieve(chunks[0].id)
            assert found.choices[0].message.content == text
            assert found.usage is not None
            assert found.usage.completion_tokens == 60
        await server.stop(0)
