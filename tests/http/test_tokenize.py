"""What the model sees of texts and conversations, without an answer; and turns that go on."""

from typing import Any

import httpx

from tests.http.fake_engine import FakeEngine

TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Sure: "}]


async def test_texts_there_and_back(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    text = "hello w\u00f6rld"
    said = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert said["tokens"] == engine.tokenizer.encode(text)
    assert said["count"] == len(said["tokens"]) == len(said["token_strs"])
    assert said["max_model_len"] == engine.max_context
    same = await http.post("/tokenize", json={"content": text, "add_special": False})
    assert same.json()["tokens"] == said["tokens"]
    back = (await http.post("/detokenize", json={"tokens": said["tokens"]})).json()
    assert back == {"prompt": text, "content": text}


async def test_conversations(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body: dict[str, Any] = {"messages": TALK[:1]}
    prompt = (await http.post("/apply-template", json=body)).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    tokens = (await http.post("/tokenize", json=body)).json()["tokens"]
    await http.post("/v1/chat/completions", json=body)
    assert engine.asked[0].prompt == tokens
    cut = (await http.post("/apply-template", json={**body, "add_generation_prompt": False})).json()
    assert prompt == cut["prompt"] + "<|im_start|>assistant\n"
    told = await http.post("/apply-template", json={"messages": [{**TALK[0], "name": "Ada"}]})
    assert "messages[].name" in told.json()["warnings"][0]


async def test_a_turn_that_goes_on(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    spelled = {"role": "assistant", "content": "<|im_end|> is "}
    for last in (TALK[1], spelled):
        body = {"messages": [TALK[0], last], "continue_final_message": True}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        seen = engine.tokenizer.decode(engine.asked[-1].prompt)
        assert seen.endswith("<|im_start|>assistant\n" + last["content"])
    both = {"continue_final_message": True, "add_generation_prompt": True, "messages": TALK}
    error = (await http.post("/v1/chat/completions", json=both)).json()["error"]
    assert error["param"] == "continue_final_message"


async def test_wrong_requests_are_refused(http: httpx.AsyncClient) -> None:
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "content"),
        ("/tokenize", {"prompt": "a", "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"prompt": "a", "model": "x"}, "model"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
    ):
        answer = await http.post(path, json=body)
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["param"] == param


async def test_models_say_their_context(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["max_model_len"] == engine.max_context
