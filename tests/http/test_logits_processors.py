"""Logits processors over HTTP: a request reaches what the operator has declared."""

import httpx
import pytest

from pyengine import AsyncEngine
from tests.test_logits_processors import PATHS


@pytest.fixture
def engine() -> AsyncEngine:
    return AsyncEngine(logits_processors=PATHS)


async def test_a_request_reaches_them(http: httpx.AsyncClient) -> None:
    asked = {"logits_processors": {"no_repeats": {}}, "max_tokens": 40, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": "a b a b"}], **asked}
    answer = (
        await http.post("/v1/chat/completions", json=chat | {"return_token_ids": True})
    ).json()
    tokens = answer["choices"][0]["token_ids"]
    assert len(set(tokens)) == len(tokens) == 40
    text = {"prompt": "a b a b", **asked, "logits_processors": ["no_repeats"]}
    answer = (await http.post("/v1/completions", json=text | {"return_token_ids": True})).json()
    tokens = answer["choices"][0]["token_ids"]
    assert len(set(tokens)) == len(tokens) == 40


async def test_undeclared_processor_is_refused(http: httpx.AsyncClient) -> None:
    undeclared: list[dict[str, dict[str, int]] | list[str]] = [
        {"os": {}},
        ["tests.processors:count_up"],
    ]
    for given in undeclared:
        answer = await http.post(
            "/v1/completions", json={"prompt": "a", "logits_processors": given}
        )
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "logits_processors"
        assert "no_repeats" in error["message"]


async def test_a_failure_is_told(http: httpx.AsyncClient) -> None:
    asked = {"prompt": "a", "logits_processors": {"fails": {"after": 2}}}
    answer = await http.post("/v1/completions", json=asked)
    assert answer.status_code == 500
    assert "'fails' raised ValueError: 2 tokens are enough" in answer.json()["error"]["message"]
