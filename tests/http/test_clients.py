"""The real clients of others, from PyPI, do their usual job by changing the URL."""

from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.http.test_anthropic import NOW as ANTHROPIC_NOW
from tests.http.test_anthropic import WEATHER as ANTHROPIC_WEATHER
from tests.http.test_tools import CALLS, NOW, TEMPLATE, THOUGHT, WEATHER

pytestmark = pytest.mark.slow

MODEL = "org/fake"
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def engine() -> FakeEngine:
    answer = THOUGHT + "I look.\n" + CALLS
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=answer, max_context=4096)


async def test_anthropic(server: HttpServer, engine: FakeEngine) -> None:
    anthropic = pytest.importorskip("anthropic", reason="make .venv/clients installs it")
    tools: Any = [ANTHROPIC_WEATHER, ANTHROPIC_NOW]
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client:
        given: Any = {"model": MODEL, "max_tokens": 400, "messages": HELLO, "tools": tools}
        answer = await client.messages.create(**given)
        assert [block.type for block in answer.content] == [
            "thinking", "text", "tool_use", "tool_use",
        ]  # fmt: skip
        assert answer.content[2].input == {"city": "Paris"}
        async with client.messages.stream(**given) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == "I look."
        assert final.stop_reason == "tool_use"
        # Ids apart, the stream put together is the whole answer.
        for one, other in zip(answer.content, final.content, strict=True):
            shown = [block.model_dump(exclude={"id"}) for block in (one, other)]
            assert shown[0] == shown[1]
        del given["max_tokens"]
        counted = await client.messages.count_tokens(**given)
        assert counted.input_tokens == len(engine.asked[0].prompt)
        extra = {"mcp_servers": [{"url": "x"}]}
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await client.messages.create(**given, max_tokens=5, extra_body=extra)


async def test_ollama(server: HttpServer, engine: FakeEngine) -> None:
    ollama = pytest.importorskip("ollama", reason="make .venv/clients installs it")
    async with ollama.AsyncClient(host=server.url) as client:
        await ollama_job(ollama, client, engine)


async def ollama_job(ollama: Any, client: Any, engine: FakeEngine) -> None:
    answer = await client.chat(MODEL, HELLO, tools=[WEATHER, NOW])
    assert answer.message.thinking == "Let me see."
    assert [call.function.name for call in answer.message.tool_calls] == ["get_weather", "now"]
    messages = [*HELLO, answer.message]
    messages += [
        {"role": "tool", "tool_name": name, "content": "dry"} for name in ("get_weather", "now")
    ]
    engine.answer = ANSWER
    parts = [part async for part in await client.chat(MODEL, messages, stream=True)]
    assert "".join(part.message.content for part in parts) == ANSWER
    assert parts[-1].eval_count == len(ANSWER)
    assert (await client.generate(MODEL, "hello", options={"num_predict": 3})).response == ANSWER[
        :3
    ]
    assert (await client.list()).models[0].model == MODEL
    assert "tools" in (await client.show(MODEL)).capabilities
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        await client.generate(MODEL, "hello", options={"mirostat": 2})


async def test_langchain(server: HttpServer, engine: FakeEngine) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="make .venv/clients installs it")
    # Its own clients are never closed.
    async with httpx.AsyncClient() as connections:
        chat = langchain.ChatOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            model=MODEL,
            http_async_client=connections,
        )
        await langchain_job(chat, engine)


async def langchain_job(chat: Any, engine: FakeEngine) -> None:
    answer = await chat.bind_tools([WEATHER, NOW]).ainvoke([("human", "hello")])
    assert [call["name"] for call in answer.tool_calls] == ["get_weather", "now"]
    assert answer.usage_metadata["input_tokens"] == len(engine.asked[0].prompt)
    engine.answer = ANSWER
    parts = [part async for part in chat.astream([("system", "Be brief."), ("human", "hello")])]
    assert "".join(part.content for part in parts) == ANSWER
