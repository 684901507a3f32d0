"""Stored responses through OpenAI's client: found again, gone on with, in the background."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from pyengine.chat.template import ChatTemplate
from pyengine.errors import EngineDeadError, InvalidGrammarError
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.serving.server import HttpServer
from pyengine.http.store.store import Store, StoreLimits
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.http.test_responses_api import NOW, WEATHER
from tests.http.test_tools import CALLS, TEMPLATE, THOUGHT

MODEL = "org/fake"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=ANSWER, max_context=4096)


async def test_found_again(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = await client.responses.create(model=MODEL, input="hello", metadata={"a": "b"})
    found = await client.responses.retrieve(made.id)
    assert found == made
    assert found.metadata == {"a": "b"}
    assert (await http.get(f"/v1/responses/{made.id}")).json()["id"] == made.id
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="No response with the id"):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(made.id)


async def test_response_with_store_false_is_not_stored(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_streamed_ones_are_there_when_they_end(client: openai.AsyncOpenAI) -> None:
    async for event in await client.responses.create(model=MODEL, input="hello", stream=True):
        if event.type == "response.completed":
            assert await client.responses.retrieve(event.response.id) == event.response


async def test_a_conversation_goes_on(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.answers = [THOUGHT + "I look.\n" + CALLS, "dry", "indeed"]
    first = await client.responses.create(
        model=MODEL, input="rain?", tools=[WEATHER, NOW], instructions="Be brief."
    )
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "no"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = await client.responses.create(
        model=MODEL, input=outputs, previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    assert second.output_text == "dry"
    third = await client.responses.create(
        model=MODEL, input="sure?", previous_response_id=second.id
    )
    # The instructions are not carried over, all else is; nothing of it brings a warning.
    assert engine.tokenizer.decode(engine.asked[2].prompt) == (
        "user:rain?;assistant:I look.Let me see.[get_weather Paris][now ];tool:no;tool:no;"
        "assistant:dry;user:sure?;"
    )
    assert "warnings" not in (third.model_extra or {})
    # What came before goes on without the response that it came from.
    await client.responses.delete(second.id)
    again = await client.responses.create(model=MODEL, input="so", previous_response_id=third.id)
    assert engine.asked[3].prompt[: len(engine.asked[2].prompt)] == engine.asked[2].prompt
    assert again.status == "completed"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="x", previous_response_id=second.id)
    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "previous_response_not_found"


async def test_reasoning_that_was_cut_short_is_left_out(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.answers = [THOUGHT, "fine"]
    stream = await client.responses.create(
        model=MODEL, input="hello", stream=True, max_output_tokens=12
    )
    cut: Any = [event async for event in stream][-1]
    assert cut.response.status == "incomplete"
    assert [item.type for item in cut.response.output] == ["reasoning"]
    answer = await client.responses.create(
        model=MODEL, input="go on", previous_response_id=cut.response.id
    )
    assert answer.output_text == "fine"


async def test_input_items(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    given: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}], "id": "msg_mine"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
            {"type": "reasoning_text", "text": "b"}
        ]},
        {"role": "assistant", "content": "c"},
        {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "d"},
    ]  # fmt: skip
    first = await client.responses.create(model=MODEL, input=given)
    second = await client.responses.create(model=MODEL, input="e", previous_response_id=first.id)
    items: list[Any] = [i async for i in client.responses.input_items.list(second.id, limit=3)]
    assert [item.type for item in reversed(items)] == [
        "message", "message", "reasoning", "message", "function_call", "function_call_output",
        "message", "message",
    ]  # fmt: skip
    assert items[0].content[0].text == "e"
    assert items[-2].id == "msg_mine"
    assert items[1].content[0].text == ANSWER
    assert len({item.id for item in items}) == len(items)
    listed = (await http.get(f"/v1/responses/{second.id}/input_items?order=asc&limit=100")).json()
    assert [item["id"] for item in listed["data"]] == [item.id for item in reversed(items)]
    for path in (f"{second.id}/input_items", second.id):
        told = await http.get(f"/v1/responses/{path}?include[]=message.output_text.logprobs")
        assert "'include'" in told.headers["x-pyengine-warnings"]
    for query in ("order=up", "limit=0", "before=x", "after=x"):
        answer = await http.get(f"/v1/responses/{second.id}/input_items?{query}")
        assert answer.json()["error"]["param"] == query.partition("=")[0]


async def test_input_tokens(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(model=MODEL, input="hello")
    given: Any = {"input": "more", "previous_response_id": first.id, "tools": [WEATHER]}
    counted = await client.responses.input_tokens.count(model=MODEL, **given)
    assert len(engine.asked) == 1
    await client.responses.create(model=MODEL, **given)
    assert counted.input_tokens == len(engine.asked[1].prompt)
    assert counted.object == "response.input_tokens"
    with pytest.raises(openai.NotFoundError, match="No conversation"):
        await client.responses.input_tokens.count(model=MODEL, input="x", conversation="c")


async def test_truncation(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    turns: Any = [
        message
        for number in range(400)
        for message in (
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": f"answer {number}"},
        )
    ]
    last: Any = {"role": "user", "content": "and now?"}
    given: Any = {"input": [*turns, last], "instructions": "Be brief.", "max_output_tokens": 50}
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.responses.create(model=MODEL, **given)
    answer = await client.responses.create(model=MODEL, truncation="auto", **given)
    assert answer.truncation == "auto"
    prompt = engine.tokenizer.decode(engine.asked[0].prompt)
    assert prompt.startswith("system:Be brief.;user:question ")
    assert prompt.endswith("user:and now?;")
    room = engine.max_context - 50 - len(engine.asked[0].prompt)
    first = int(prompt.partition("question ")[2].partition(";")[0])
    turn = f"user:question {first - 1};assistant:answer {first - 1};"
    assert 0 <= room < len(engine.tokenizer.encode(turn, add_special_tokens=False))
    assert (answer.model_extra or {})["warnings"] == [
        f"'truncation': the {2 * first} oldest messages are left out."
    ]
    last["content"] = "x" * 10_000
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.responses.create(model=MODEL, truncation="auto", **given)
    await client.responses.create(model=MODEL, input="short", truncation="auto")
    assert engine.tokenizer.decode(engine.asked[1].prompt) == "user:short;"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_goes_back_as_one_string(
    client: openai.AsyncOpenAI, engine: FakeEngine, stream: bool
) -> None:
    """As Codex and LiteLLM's bridge do: they send nothing of the reasoning but that."""
    engine.answers = [THOUGHT + "I look.", "dry"]
    given: Any = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"]}
    given["reasoning"] = {"effort": None, "summary": "auto"}
    answer: Any = await client.responses.create(input="rain?", stream=stream, **given)
    if stream:
        answer = [event async for event in answer][-1].response
    assert not any("include" in warning for warning in answer.warnings)
    thought, said = answer.output
    assert thought.content[0].text == "Let me see."
    back: Any = [
        {"role": "user", "content": "rain?"},
        {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content},
        {"role": "assistant", "content": said.content[0].text},
        {"role": "user", "content": "sure?"},
    ]
    await client.responses.create(input=back, **given)
    assert "assistant:I look.Let me see.;" in engine.tokenizer.decode(engine.asked[1].prompt)
    back[1]["encrypted_content"] = "gAAAAAB"
    other: Any = await client.responses.create(input=back, **given)
    assert "assistant:I look.;" in engine.tokenizer.decode(engine.asked[2].prompt)
    assert any("encrypted_content" in warning for warning in other.warnings)


async def finished(client: openai.AsyncOpenAI, name: str) -> Response:
    """The response once its events have ended."""
    async for _ in await client.responses.retrieve(name, stream=True):
        pass
    return await client.responses.retrieve(name)


async def test_in_the_background(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold_after = 3
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert (await http.get(f"/v1/responses/{made.id}")).json()["id"] == made.id
    with pytest.raises(openai.BadRequestError, match="has ended"):
        await client.responses.create(model=MODEL, input="x", previous_response_id=made.id)
    engine.release()
    done = await finished(client, made.id)
    assert (done.status, done.output_text) == ("completed", ANSWER)
    assert (await http.get(f"/v1/responses/{made.id}")).json()["id"] == made.id
    # Whole and streamed, in the background or not, it is the same but for its ids.
    plain = await client.responses.create(model=MODEL, input="hello")
    assert plain.output_text == done.output_text
    assert plain.usage == done.usage


async def test_its_events_are_read_from_anywhere(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold_after = 8
    stream = await client.responses.create(model=MODEL, input="hello", background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()  # the client leaves; the response goes on
    name = seen[0].response.id
    assert (await client.responses.retrieve(name)).status == "in_progress"
    rest = await client.responses.retrieve(
        name, stream=True, starting_after=seen[-1].sequence_number
    )
    engine.release()
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == ANSWER
    assert seen[-1].response == await client.responses.retrieve(name)
    answer = await http.get(f"/v1/responses/{name}?stream=true")
    events = [json.loads(e.split("\ndata: ")[1]) for e in answer.text.split("\n\n")[:-1]]
    assert len(events) == len(seen)
    after = await http.get(f"/v1/responses/{name}?stream=true&starting_after={len(seen) - 2}")
    assert after.text.count("\n\n") == 1


async def test_cancelled(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold_after = 3
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    await engine.until(lambda: any(each.shown >= 3 for each in engine.running))
    cancelled = await client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert engine.aborted == 1
    events = [event async for event in await client.responses.retrieve(made.id, stream=True)]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert await client.responses.cancel(made.id) == cancelled
    plain = await client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(plain.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.retrieve(plain.id, stream=True)


@pytest.mark.parametrize(
    ("end", "background"),
    [
        ("incomplete", False),
        ("incomplete", True),
        ("failed", False),
        ("failed", True),
        ("cancelled", True),
    ],
)
async def test_every_end(
    client: openai.AsyncOpenAI,
    http: httpx.AsyncClient,
    server: HttpServer,
    engine: FakeEngine,
    end: str,
    background: bool,
) -> None:
    engine.answer = THOUGHT + "I look.\n" + CALLS
    body: Any = {"input": "hello", "stream": True, "background": background}
    body |= {"tools": [WEATHER], "include": ["reasoning.encrypted_content"]}
    if end == "incomplete":
        body["max_output_tokens"] = len(engine.answer) - 5
    elif end == "failed":
        engine.fail_after = (40, EngineDeadError("it fell"))
    else:
        engine.hold_after = 40
        answer = await client.responses.create(**{**body, "model": MODEL, "stream": False})
        await engine.until(lambda: any(each.shown >= 40 for each in engine.running))
        await client.responses.cancel(answer.id)
    if end == "cancelled":
        text = (await http.get(f"/v1/responses/{answer.id}?stream=true")).text
    else:
        text = (await http.post("/v1/responses", json=body)).text
    events = [json.loads(event.split("\ndata: ")[1]) for event in text.split("\n\n")[:-1]]
    assert events[-1]["response"]["status"] == end
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))


async def test_deleted_while_it_is_generated(
    client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine
) -> None:
    engine.hold_after = 3
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    await client.responses.delete(made.id)
    await server.app.running.idle.wait()
    assert engine.aborted == 1
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


@pytest.mark.parametrize("error", [EngineDeadError("it fell"), InvalidGrammarError("no")])
async def test_one_that_fails(
    client: openai.AsyncOpenAI, engine: FakeEngine, error: Exception
) -> None:
    engine.fail_after = (3 if isinstance(error, EngineDeadError) else 0, error)
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    done = await finished(client, made.id)
    assert done.status == "failed"
    assert done.error is not None
    assert done.error.message == str(error)


async def test_one_whose_process_has_died(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: HttpServer, engine: FakeEngine
) -> None:
    """What a process holds no more, and has not ended, has failed."""
    engine.hold_after = 3
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    await engine.until(lambda: any(each.shown >= 3 for each in engine.running))
    store = server.app.store
    copy = (await store.get("response", "", made.id)).body.replace(b"resp_", b"resp_lost")
    name = made.id.replace("resp_", "resp_lost")
    await store.put("response", "", name, copy)
    lost = await client.responses.retrieve(name)
    assert (lost.status, lost.error and lost.error.code) == ("failed", "server_error")
    [event] = [event async for event in await client.responses.retrieve(name, stream=True)]
    assert event.type == "response.failed"
    assert event.sequence_number == 0
    assert (await client.responses.cancel(name)).status == "failed"
    assert (await http.get(f"/v1/responses/{name}")).json()["status"] == "failed"
    engine.release()
    assert (await finished(client, made.id)).status == "completed"


@pytest.mark.parametrize(
    "query",
    [
        "metadata=x&metadata[a]=b",
        "metadata[a]=b&metadata=x",
        "metadata[]=x&metadata[a]=b",
        "metadata[a]=b&metadata[]=c",
        "include=a&include[b]=c",
        "include[b]=c&include[]=a",
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "responses/resp_x", "files", "batches"])
async def test_field_of_a_query_in_two_forms_is_refused(
    http: httpx.AsyncClient, path: str, query: str
) -> None:
    answer = await http.get(f"/v1/{path}?{query}")
    assert answer.status_code == 400
    assert "two forms" in answer.json()["error"]["message"]


async def test_refused_response_is_not_stored(
    client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine
) -> None:
    engine.refuse = EngineDeadError("it fell")
    with pytest.raises(openai.InternalServerError, match="it fell"):
        await client.responses.create(model=MODEL, input="hello", background=True)
    page = await server.app.store.page("response", "", after=None, limit=5, descending=True)
    assert not page.rows
    assert engine.admission._of_tenants.total() == 0


async def test_a_server_that_stops_ends_them(
    client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine
) -> None:
    engine.hold_after = 3
    made = await client.responses.create(model=MODEL, input="hello", background=True)
    assert await server.app.drain(0) == 1
    row = await server.app.store.get("response", "", made.id)
    response = json.loads(row.body)
    assert (response["status"], response["error"]["message"]) == (
        "failed",
        "The server is shutting down.",
    )


@pytest.fixture
async def locked(engine: FakeEngine) -> AsyncIterator[HttpServer]:
    """A server with two keys and little room."""
    await engine.start()
    door = Door(AccessSource(ServerConfig(api_key=("sk-alice-1", "sk-bob-123"))).rules())
    store = Store(StoreLimits(most_bytes=20_000))
    server = HttpServer(engine, port=0, door=door, store=store)
    await server.start()
    yield server
    await server.stop(0)


async def test_a_key_sees_its_own_only(locked: HttpServer) -> None:
    alice, bob = (
        openai.AsyncOpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0)
        for key in ("sk-alice-1", "sk-bob-123")
    )
    async with alice, bob:
        made = await alice.responses.create(model=MODEL, input="hello")
        assert (await alice.responses.retrieve(made.id)).id == made.id
        for ask in (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.NotFoundError):
            [item async for item in bob.responses.input_items.list(made.id)]
        with pytest.raises(openai.BadRequestError):
            await bob.responses.create(model=MODEL, input="x", previous_response_id=made.id)
        # Who fills the store loses the oldest of their own, not another's.
        names = [(await bob.responses.create(model=MODEL, input="x" * 400)).id for _ in range(30)]
        assert (await alice.responses.retrieve(made.id)).id == made.id
        assert (await bob.responses.retrieve(names[-1])).id == names[-1]
        with pytest.raises(openai.NotFoundError):
            await bob.responses.retrieve(names[0])
        assert locked.app.store.limits.most_bytes == 20_000


async def test_a_server_without_a_store(engine: FakeEngine) -> None:
    await engine.start()
    server = HttpServer(engine, port=0, store=Store(StoreLimits(most_bytes=0)))
    await server.start()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        made = await client.responses.create(model=MODEL, input="hello", store=True)
        assert (made.model_extra or {})["warnings"] == ["'store': this server stores no answers."]
        with pytest.raises(openai.NotFoundError, match="--store-bytes"):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.create(model=MODEL, input="hello", background=True)
    await server.stop(0)
