"""Fields that clients of Ollama's API send: each is done, told of, or refused."""

from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import TEMPLATE

CHAT: dict[str, Any] = {
    "model": "org/fake", "stream": False, "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
GENERATE: dict[str, Any] = {"model": "org/fake", "stream": False, "prompt": "hi"}


@pytest.fixture
def engine() -> FakeEngine:
    template = TEMPLATE + "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    return FakeEngine(template=ChatTemplate(template), answer="ok")


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
async def test_tenants_are_kept_apart(
    http: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    more = {"cache_salt": "s", "priority": 2, "timeout": 9}
    more |= {"chat_template_kwargs": {"reasoning_effort": "low"}}
    answer = await http.post(path, json={**body, **more, "options": {"num_predict": 5.0}})
    assert answer.status_code == 200, answer.text
    (made,) = engine.asked
    assert (made.cache_salt, made.priority, made.params.max_tokens) == ("s", 2, 5)
    assert "[low]" in engine.tokenizer.decode(made.prompt)


async def test_a_raw_prompt_has_no_template(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {**GENERATE, "raw": True}
    assert (await http.post("/api/generate", json={**body, "cache_salt": "s"})).status_code == 200
    assert engine.asked[0].cache_salt == "s"
    answer = await http.post("/api/generate", json={**body, "chat_template_kwargs": {"a": 1}})
    assert answer.status_code == 400
    assert "chat_template_kwargs" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/api/generate", {}, "load"),
        ("/api/generate", {"keep_alive": "5m"}, "load"),
        ("/api/generate", {"keep_alive": 0}, "unload"),
        ("/api/chat", {"messages": []}, "load"),
        ("/api/chat", {"messages": [], "keep_alive": 0}, "unload"),
    ],
)
async def test_loading_is_answered_without_the_engine(
    http: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], reason: str
) -> None:
    answer = (await http.post(path, json={"model": "org/fake", **body})).json()
    assert (answer["done"], answer["done_reason"]) == (True, reason)
    assert ("keep_alive" in str(answer.get("warnings"))) == ("keep_alive" in body)
    assert answer.get("response", answer.get("message", {}).get("content")) == ""
    assert not engine.asked


async def test_curls_of_ollamas_documents(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    """``curl -d`` says that its body is a form, and LiteLLM says nothing."""
    data = b'{"model": "org/fake", "prompt": "hi", "stream": false}'
    url = str(http.base_url).rstrip("/") + "/api/generate"
    async with httpx.AsyncClient() as client:
        for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
            answer = await client.post(url, content=data, headers=headers)
            assert answer.status_code == 200, answer.text
            for page in ({"origin": str(http.base_url)}, {"sec-fetch-site": "same-origin"}):
                answer = await client.post(url, content=data, headers={**headers, **page})
                assert answer.status_code in (403, 415), answer.text


DEFAULTS = {
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "num_ctx": 2048,
    "mirostat": 0,
    "tfs_z": 1.0,
}


async def test_ollamas_default_options(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await http.post("/api/chat", json={**CHAT, "options": DEFAULTS})
    assert answer.status_code == 200, answer.text
    penalty = {"options": {**DEFAULTS, "repeat_penalty": 1.1}}
    answer = await http.post("/api/chat", json={**CHAT, **penalty})
    assert answer.status_code == 400
    assert "'options.repeat_last_n' must be -1" in answer.json()["error"]
    for last, wanted in ((-1, 1.1), (0, 1.0)):
        penalty["options"]["repeat_last_n"] = last
        assert (await http.post("/api/chat", json={**CHAT, **penalty})).status_code == 200
        assert engine.asked[-1].params.repetition_penalty == wanted


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/chat", {"temperature": 0}, "'temperature'. Did you mean 'options.temperature'?"),
        ("/api/generate", {"seed": 1}, "'seed'. Did you mean 'options.seed'?"),
        ("/api/chat", {"logprobs": True}, "'logprobs' is not supported"),
    ],
)
async def test_errors_name_what_was_sent(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], said: str
) -> None:
    body = CHAT if path == "/api/chat" else GENERATE
    answer = await http.post(path, json={**body, **fields})
    assert answer.status_code == 400
    assert said in answer.json()["error"]


async def test_digests_and_versions(http: httpx.AsyncClient) -> None:
    """Ollama's own program cuts digests to 12 characters; editors ask for a version."""
    for path in ("/api/tags", "/api/ps"):
        digest = (await http.get(path)).json()["models"][0]["digest"]
        assert len(bytes.fromhex(digest)) == 32
    version = (await http.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


async def test_pulling_the_model_that_is_served(http: httpx.AsyncClient) -> None:
    """As Codex and Open WebUI do before they chat."""
    for name in ("org/fake", "org/fake:latest"):
        answer = await http.post("/api/pull", json={"model": name})
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert answer.text == '{"status":"success"}\n'
    whole = await http.post("/api/pull", json={"name": "org/fake", "stream": False})
    assert whole.json() == {"status": "success"}
    other = await http.post("/api/pull", json={"model": "llama3"})
    assert other.status_code == 404
    assert "org/fake" in other.json()["error"]
