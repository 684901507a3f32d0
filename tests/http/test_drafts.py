"""Speculation behind the endpoint: the same answers with and without, and figures that add up."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer
from pyengine.profiling.observe import observe
from pyengine.profiling.report import ProfileReport
from pyengine.settings.choices import Proposer
from tests.answers import assert_nothing_is_left

ALL: tuple[Proposer, ...] = ("forced", "prediction", "ngram", "draft_model")
MODEL = "pyengine-demo"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "likes": {"enum": ["tea", "trains"]}},
    "required": ["name", "likes"],
    "additionalProperties": False,
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
}


def said(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


@asynccontextmanager
async def served(
    proposers: tuple[Proposer, ...],
) -> AsyncIterator[tuple[AsyncEngine, HttpServer, openai.AsyncOpenAI]]:
    """An engine that drafts as much as it can, and a client of it; nothing is left behind."""
    async with AsyncEngine(
        speculation=proposers,
        draft_model="demo" if proposers else None,
        _adaptive_drafts=False,
        max_sequences=16,
    ) as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield engine, server, client
        await server.stop(10)
        await assert_nothing_is_left(engine)


async def chats(client: openai.AsyncOpenAI) -> list[Any]:
    """Answers of many kinds to whole requests: choices, rules, log-probabilities, a schema."""
    repeat = said("Repeat exactly: red green blue red green blue red green blue")
    asked: list[dict[str, Any]] = [
        {"messages": repeat, "temperature": 0},
        {"messages": repeat, "temperature": 0, "logprobs": True, "top_logprobs": 2},
        {"messages": said("Tell me a story."), "n": 3, "seed": 4, "temperature": 1.3},
        {"messages": said("Tell me a story."), "n": 2, "seed": 9, "presence_penalty": 1.0},
        {"messages": said("Ann likes tea."), "temperature": 0, "response_format": FORMAT},
        {
            "messages": said("What is the capital of France?"),
            "temperature": 0,
            "prediction": {"type": "content", "content": "The capital of France is Rome."},
        },
    ]
    return await asyncio.gather(
        *(client.chat.completions.create(model=MODEL, max_tokens=50, **of) for of in asked)
    )


def told(answers: list[Any]) -> list[Any]:
    """What answers say, without their usage, names and times."""
    return [[choice.model_dump() for choice in answer.choices] for answer in answers]


async def test_answers_are_the_same_and_figures_add_up() -> None:
    async with served(()) as (_, _, client):
        wanted = told(await chats(client))
    async with served(ALL) as (engine, server, client):
        answers: list[Any] = []

        async def work() -> None:
            answers.extend(await chats(client))
            # Again: recent answers are drafted from, if it is the same user.
            answers.extend(await chats(client))

        report = ProfileReport.of(await observe(engine, work), {})
        metrics = await fetch(server, "/metrics")
    assert told(answers) == wanted * 2
    details = [answer.usage.completion_tokens_details for answer in answers]
    accepted = sum(one.accepted_prediction_tokens for one in details)
    rejected = sum(one.rejected_prediction_tokens for one in details)
    assert accepted > 0
    assert rejected > 0
    # The same drafts in the profile and in the metrics: by proposer, and by position.
    assert [drafts.proposer for drafts in report.drafts] == list(ALL)
    assert sum(drafts.accepted for drafts in report.drafts) == accepted
    assert sum(drafts.drafted for drafts in report.drafts) == accepted + rejected
    for drafts in report.drafts:
        of = f'proposer="{drafts.proposer}"'
        counts = {"accepted": drafts.accepted, "rejected": drafts.drafted - drafts.accepted}
        for outcome, count in counts.items():
            assert figure(metrics, "draft_tokens_total", of, f'outcome="{outcome}"') == count
        assert sum(place.accepted for place in drafts.positions) == drafts.accepted
        for place in drafts.positions:
            labels = of, f'position="{place.place}"', 'outcome="accepted"'
            assert figure(metrics, "draft_tokens_by_position_total", *labels) == place.accepted


async def fetch(server: HttpServer, path: str) -> str:
    import httpx

    async with httpx.AsyncClient(base_url=server.url) as http:
        return (await http.get(path)).text


def figure(metrics: str, name: str, *labels: str) -> float:
    """A sample's value, by its name and some of its labels."""
    [line] = [
        line
        for line in metrics.splitlines()
        if line.startswith(f"pyengine_{name}{{") and all(label in line for label in labels)
    ]
    return float(line.rsplit(" ", 1)[1])


COUNT = {
    "model": MODEL,
    "messages": said("Count from 3 to 40"),
    "max_tokens": 60,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


async def stopped(client: openai.AsyncOpenAI, whole: str, begin: int, length: int) -> Any:
    """How an answer ends at some of its characters, in the middle of tokens and of drafts."""
    given: dict[str, Any] = COUNT | {
        "stop": [whole[begin : begin + length], "no such string"],
        "prediction": {"type": "content", "content": whole},
    }
    [choice] = (await client.chat.completions.create(**given)).choices
    chunks = await client.chat.completions.create(stream=True, **given)
    pieces = [chunk.choices[0] async for chunk in chunks]
    assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
    assert pieces[-1].finish_reason == choice.finish_reason == "stop"
    text: str = choice.message.content or ""
    assert whole.startswith(text)
    assert whole[begin : begin + length] not in text
    return text


async def test_stop_strings_end_answers_where_they_do_without_drafts() -> None:
    given: dict[str, Any] = COUNT
    places = list(itertools.product(range(6, 50, 6), (1, 3, 8)))
    async with served(()) as (_, _, client):
        whole = (await client.chat.completions.create(**given)).choices[0].message.content
        assert whole is not None
        assert len(whole) >= 60
        wanted = await asyncio.gather(*(stopped(client, whole, *at) for at in places))
    assert len(set(wanted)) > 5
    async with served(ALL) as (engine, _, client):
        assert await asyncio.gather(*(stopped(client, whole, *at) for at in places)) == wanted
        assert (await engine.report())["accepted_prediction"] > 100


async def test_clients_that_leave_take_their_drafts_along() -> None:
    """Some leave while their drafts are verified; the others' answers are whole."""
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 80, "temperature": 0, "stream": True}

    async def all_of(client: openai.AsyncOpenAI, index: int) -> str:
        messages = said(f"Count from {index} to 40")
        streamed = await client.chat.completions.create(messages=messages, **given)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in streamed])

    async def some_of(client: openai.AsyncOpenAI, index: int) -> None:
        messages = said(f"Count from {index} to 40")
        streamed = await client.chat.completions.create(messages=messages, **given)
        for _ in range(1 + index % 5):
            await anext(streamed)
        await streamed.close()

    wanted: list[str] = []
    async with served(()) as (_, _, client):
        wanted += await asyncio.gather(*(all_of(client, index) for index in range(6)))
    async with served(ALL) as (engine, _, client):
        kinds: list[Callable[[openai.AsyncOpenAI, int], Awaitable[Any]]] = [all_of, some_of]
        found = await asyncio.gather(*(kind(client, i) for i in range(6) for kind in kinds))
        assert found[::2] == wanted
        assert (await engine.report())["accepted_draft_model"] > 0
