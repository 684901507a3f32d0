"""Ollama's API: lines of JSON, and what its clients ask of a model."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.completion import Update
from pyengine.errors import EngineDeadError
from tests.http.fake_engine import ANSWER, FakeEngine, FakeGeneration
from tests.http.test_tools import CALLS, NOW, TEMPLATE, THOUGHT, WEATHER

MODEL = "org/fake"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def engine() -> FakeEngine:
    answer = THOUGHT + "I look.\n" + CALLS
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=answer, max_context=4096)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_text(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = ANSWER
    options = {
        "num_predict": 9, "temperature": 0.5, "repeat_penalty": 1.5, "stop": ["zz"], "num_ctx": 99,
    }  # fmt: skip
    body = {"model": f"{MODEL}:latest", "messages": HELLO, "options": options, "keep_alive": "5m"}
    found = lines(await http.post("/api/chat", json=body))
    assert "".join(line["message"]["content"] for line in found) == ANSWER[:9]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert (last["done_reason"], last["eval_count"]) == ("length", 9)
    assert last["prompt_eval_count"] == len(engine.asked[0].prompt)
    assert {warning.split("'")[1] for warning in last["warnings"]} == {
        "options.num_ctx", "keep_alive",
    }  # fmt: skip
    params = engine.asked[0].params
    assert (params.max_tokens, params.temperature, params.repetition_penalty) == (9, 0.5, 1.5)
    assert params.stop == ("zz",)
    whole = (await http.post("/api/chat", json={**body, "stream": False})).json()
    assert whole["message"]["content"] == ANSWER[:9]
    assert whole["done"]


async def test_no_task_wakes_for_a_line(
    http: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks: list[Callable[[Update], None]] = []
    monkeypatch.setattr(FakeGeneration, "pass_updates", lambda _, sink: sinks.append(sink))
    await http.post("/api/chat", json={"messages": HELLO})
    await http.post("/api/generate", json={"prompt": "hello"})
    assert len(sinks) == 2


async def test_calls_there_and_back(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"model": MODEL, "messages": HELLO, "tools": [WEATHER, NOW]}
    found = lines(await http.post("/api/chat", json=body))
    assert "".join(line["message"].get("thinking", "") for line in found) == "Let me see."
    (calls,) = [each for line in found if (each := line["message"].get("tool_calls"))]
    assert [call["function"]["arguments"] for call in calls] == [{"city": "Paris"}, {}]
    whole = (await http.post("/api/chat", json={**body, "stream": False})).json()["message"]
    assert len(whole["tool_calls"]) == 2
    # A client without ids answers in the calls' order.
    bare = [{"function": call["function"]} for call in calls]
    again = [
        *HELLO,
        {"role": "assistant", "content": "I look.", "tool_calls": bare},
        {"role": "tool", "content": "no rain", "tool_name": "get_weather"},
        {"role": "tool", "content": "noon"},
    ]
    engine.answer = "dry"
    answer = await http.post("/api/chat", json={**body, "messages": again, "stream": False})
    assert answer.json()["message"]["content"] == "dry"
    seen = engine.tokenizer.decode(engine.asked[-1].prompt)
    assert seen.endswith("tool:no rain;tool:noon;")


async def test_prompts(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = ANSWER
    body = {"model": MODEL, "prompt": "hello", "stream": False}
    whole = (await http.post("/api/generate", json={**body, "system": "Be brief."})).json()
    assert whole["response"] == ANSWER
    prompts = [engine.tokenizer.decode(engine.asked[0].prompt)]
    assert prompts[0] == "system:Be brief.;user:hello;"
    found = lines(await http.post("/api/generate", json={**body, "raw": True, "stream": True}))
    assert "".join(line["response"] for line in found) == ANSWER
    assert engine.tokenizer.decode(engine.asked[1].prompt) == "hello"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for given in ("json", schema):
        assert (await http.post("/api/generate", json={**body, "format": given})).status_code == 200
        assert engine.asked[-1].grammar is not None


async def test_the_model(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    (model,) = (await http.get("/api/tags")).json()["models"]
    assert model["name"] == MODEL
    assert (await http.get("/api/ps")).json()["models"][0]["model"] == MODEL
    shown = (await http.post("/api/show", json={"model": MODEL})).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["pyengine.context_length"] == engine.max_context
    assert (await http.get("/api/version")).json()["version"]


async def test_wrong_requests_are_refused(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for fields, name in (
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"temperature": 9}}, "options.temperature"),
        ({"format": "xml"}, "format"),
        ({"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, "messages[0].images"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"modle": "x"}, "modle"),
    ):
        answer = await http.post("/api/chat", json={"model": MODEL, "messages": HELLO, **fields})
        assert answer.status_code == 400, answer.text
        assert name in answer.json()["error"]
    answer = await http.post("/api/chat", json={"model": "llama3", "messages": HELLO})
    assert answer.status_code == 404
    engine.fail_after = (3, EngineDeadError("the engine failed"))
    found = lines(await http.post("/api/chat", json={"model": MODEL, "messages": HELLO}))
    assert found[-1] == {"error": "the engine failed"}
