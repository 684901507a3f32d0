"""What requests leave out is sampled as the model's generation_config.json says, at each door."""

from typing import Any

import httpx
import pytest

from pyengine import SamplingParams
from pyengine.request.generation_config import GenerationConfig
from tests.http.fake_engine import FakeEngine

TALK = [{"role": "user", "content": "hello"}]
DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"model": "org/fake", "messages": TALK, "max_tokens": 9},
    "/api/chat": {"model": "org/fake", "messages": TALK, "stream": False},
    "/api/generate": {"model": "org/fake", "prompt": "hello", "raw": True, "stream": False},
}


@pytest.fixture
def engine() -> FakeEngine:
    params = SamplingParams(temperature=0.6, top_k=20, repetition_penalty=1.5)
    return FakeEngine(generation_config=GenerationConfig(params))


@pytest.mark.parametrize("path", DOORS)
async def test_a_request_has_what_it_leaves_out_and_overrides(
    http: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    top_k: dict[str, Any] = {"options": {"top_k": 7}} if path.startswith("/api") else {"top_k": 7}
    for more in ({}, top_k):
        assert (await http.post(path, json={**DOORS[path], **more})).status_code == 200
    found = [(a.params.temperature, a.params.top_k, a.params.top_p) for a in engine.asked]
    assert found == [(0.6, 20, 1.0), (0.6, 7, 1.0)]
    assert all(asked.params.repetition_penalty == 1.5 for asked in engine.asked)


async def test_the_lists_of_models_say_so(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    wanted = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.5}
    listed = (await http.get("/v1/models")).json()["data"]
    assert [model["default_sampling_params"] for model in listed] == [wanted]
    shown = (await http.post("/api/show", json={"model": "org/fake"})).json()
    assert shown["parameters"] == "temperature 0.6\ntop_k 20\nrepeat_penalty 1.5"
    engine.generation_config = GenerationConfig()
    assert "default_sampling_params" not in (await http.get("/v1/models")).json()["data"][0]
