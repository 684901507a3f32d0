"""Conversations and compacted responses through OpenAI's client."""

from typing import Any

import httpx
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.http.openai.responses.compact import ASK
from tests.http.fake_engine import FakeEngine
from tests.http.test_responses_api import NOW, WEATHER
from tests.http.test_tools import CALLS, TEMPLATE

MODEL = "org/fake"
HELLO: Any = {"type": "message", "role": "user", "content": "hello"}
MINE: Any = {**HELLO, "id": "mine"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer="hi", max_context=4096)


def prompts(engine: FakeEngine) -> list[str]:
    return [engine.tokenizer.decode(asked.prompt) for asked in engine.asked]


async def test_conversation_is_found_changed_and_removed(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    assert (await client.conversations.retrieve(made.id)).metadata == {"c": "d"}
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    for refused in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(openai.NotFoundError, match="No conversation with the id"):
            await refused(made.id)


async def test_items_are_added_listed_and_removed(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HELLO])
    call: Any = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    more = await client.conversations.items.create(made.id, items=[MINE, call])
    assert [item.type for item in more.data] == ["message", "function_call"]
    assert (more.first_id, more.has_more) == ("mine", False)
    page = await client.conversations.items.list(made.id, order="asc", limit=2)
    assert page.data[1].id == "mine"
    listed = [item async for item in client.conversations.items.list(made.id)]
    assert [item.type for item in listed] == ["function_call", "message", "message"]
    ids = [item.id for item in listed]
    assert len(set(ids)) == 3
    found = await client.conversations.items.retrieve("mine", conversation_id=made.id)
    assert found == listed[1]
    after = await client.conversations.items.delete("mine", conversation_id=made.id)
    assert after.id == made.id
    left = [item.id async for item in client.conversations.items.list(made.id)]
    assert left == [ids[0], ids[2]]
    with pytest.raises(openai.NotFoundError, match="has no item with the id 'mine'"):
        await client.conversations.items.retrieve("mine", conversation_id=made.id)
    # An id that is there already is made anew.
    again: Any = {**HELLO, "id": ids[2]}
    twice = await client.conversations.items.create(made.id, items=[again])
    assert twice.data[0].id != ids[2]


@pytest.mark.parametrize("way", ["whole", "streamed", "background"])
async def test_response_goes_on_from_a_conversation_and_adds_to_it(
    client: openai.AsyncOpenAI, engine: FakeEngine, way: str
) -> None:
    engine.answers = ["first", "second"]
    talk = await client.conversations.create(items=[HELLO])
    for said in ("one", "two"):
        if way == "streamed":
            stream = await client.responses.create(
                model=MODEL, input=said, conversation=talk.id, stream=True, store=False
            )
            [response] = [e.response async for e in stream if e.type == "response.completed"]
        else:
            response = await client.responses.create(
                model=MODEL,
                input=said,
                conversation={"id": talk.id},
                background=way == "background",
            )
        while response.status in ("queued", "in_progress"):
            response = await client.responses.retrieve(response.id)
        assert response.conversation is not None
        assert response.conversation.id == talk.id
    assert prompts(engine)[1] == "user:hello;user:one;assistant:first;user:two;"
    items: Any = [item async for item in client.conversations.items.list(talk.id, order="asc")]
    texts = [item.content[0].text for item in items]
    assert texts == ["hello", "one", "first", "two", "second"]
    assert [item.role for item in items][2:4] == ["assistant", "user"]


async def test_an_item_of_a_conversation_is_referred_to(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    talk = await client.conversations.create(items=[MINE])
    reference: Any = [{"type": "item_reference", "id": "mine"}]
    await client.responses.create(model=MODEL, input=reference, conversation=talk.id)
    assert prompts(engine) == ["user:hello;user:hello;"]


async def test_failed_response_adds_nothing(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    talk = await client.conversations.create(items=[HELLO])
    engine.fail_after = (1, RuntimeError("a bug"))
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model=MODEL, input="one", conversation=talk.id)
    assert len((await client.conversations.items.list(talk.id)).data) == 1


async def test_tokens_of_a_conversation_are_counted(client: openai.AsyncOpenAI) -> None:
    talk = await client.conversations.create(items=[HELLO])
    alone = await client.responses.input_tokens.count(input="one")
    counted = await client.responses.input_tokens.count(input="one", conversation=talk.id)
    assert counted.input_tokens > alone.input_tokens


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"conversation": "conv_x"}, 404, "No conversation with the id 'conv_x'"),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, 400, "do not go together"),
        ({"conversation": 1}, 400, "'conversation'"),
    ],
)
async def test_wrong_conversation_is_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, text: str
) -> None:
    answer = await http.post("/v1/responses", json={"input": "hi", **fields})
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == "conversation"
    assert text in answer.json()["error"]["message"]


async def test_items_that_are_none_are_refused(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    wrong: Any = [{"type": "poem"}]
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]"):
        await client.conversations.items.create(made.id, items=wrong)


async def test_compacted_conversation_goes_on(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.answers = ["I look.\n" + CALLS, "They asked for rain; it is dry.", "sure"]
    first = await client.responses.create(model=MODEL, input="rain?", tools=[WEATHER, NOW])
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "no"}
        for item in first.output
        if item.type == "function_call"
    ]
    asked: Any = [*outputs, {"role": "user", "content": "and wind?"}]
    short = await client.responses.compact(
        model=MODEL, input=asked, previous_response_id=first.id, instructions="Be brief."
    )
    assert short.object == "response.compaction"
    assert [item.type for item in short.output] == ["message", "compaction"]
    assert short.usage.output_tokens > 0
    assert prompts(engine)[1].startswith("system:Be brief.;user:rain?;")
    assert f"tool:no;tool:no;user:and wind?\n\n{ASK};" in prompts(engine)[1]
    # As OpenAI's agents do: the client's types know no messages of the user's in an output.
    again: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in short.output]
    await client.responses.create(model=MODEL, input=[*again, {"role": "user", "content": "so?"}])
    assert prompts(engine)[2] == (
        "user:rain?\nand wind?;assistant:Summary of the conversation so far:\n"
        "They asked for rain; it is dry.;user:so?;"
    )


async def test_compaction_of_another_server_is_refused(http: httpx.AsyncClient) -> None:
    item = {"type": "compaction", "encrypted_content": "gAAAAB"}
    answer = await http.post("/v1/responses", json={"input": [item]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].encrypted_content"
