"""Embeddings, rerank and score over HTTP, by OpenAI's client and in other servers' forms."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tokenizers
import torch

from pyengine import AsyncEngine
from pyengine.demo import MODEL_PATH
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.openai.pooling.relevance import INSTRUCTION, SYSTEM
from pyengine.http.serving.server import HttpServer
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.settings.server import ServerConfig
from tests.embedding_models import VOCABULARY, embedding_folder, expected
from tests.http.specification import Bodies
from tests.models import random_model
from tests.reference import openapi

TEXTS = ["Once upon a time", "The capital of France", "Once upon a time there was"]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncEngine:
    embedding_folder(tmp_path, "lasttoken")
    return AsyncEngine(tmp_path, served_name=("tiny",), max_context=128)


@pytest.fixture
async def server(engine: AsyncEngine) -> Any:
    await engine.start()
    server = HttpServer(engine, port=0)
    await server.start()
    yield server
    await server.stop(0)
    report = await engine.report()
    assert report["held"] == report["running"] == 0
    await engine.close()


async def test_openai(
    client: openai.AsyncOpenAI, engine: AsyncEngine, tmp_path: Path, bodies: Bodies
) -> None:
    found = await client.embeddings.create(model="tiny", input=TEXTS)  # base64, as it asks
    ids = [engine.tokenizer.encode(text) for text in TEXTS]
    body = embedding_folder(tmp_path / "again", None)
    for index, (each, tokens) in enumerate(zip(found.data, ids, strict=True)):
        assert (each.index, each.object) == (index, "embedding")
        np.testing.assert_allclose(each.embedding, expected(body, tokens, "last"), atol=2e-5)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
    assert (found.model, found.object) == ("tiny", "list")
    floats = await client.embeddings.create(model="tiny", input=ids[1], encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(found.data[1].embedding, abs=1e-7)
    several = await client.embeddings.create(model="tiny", input=ids, dimensions=8)
    for each, whole in zip(several.data, found.data, strict=True):
        cut = np.array(whole.embedding[:8])
        np.testing.assert_allclose(each.embedding, cut / np.linalg.norm(cut), atol=1e-5)
    bodies.check()
    assert bodies.seen["CreateEmbeddingResponse"] == 3


async def test_every_field_of_the_spec_has_an_effect(
    http: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = openapi()["components"]["schemas"]["CreateEmbeddingRequest"]
    given = {"model": "tiny", "encoding_format": "base64", "dimensions": 8, "user": "alice"}
    assert set(schema["properties"]) == {"input", *given}
    asked: list[str | None] = []
    begin = engine.begin

    def watched(prompt: Any, params: SamplingParams, options: RequestOptions) -> Any:
        asked.append(options.tenant)
        return begin(prompt, params, options)

    monkeypatch.setattr(engine, "begin", watched)
    plain = (await http.post("/v1/embeddings", json={"input": "x"})).json()
    made = (await http.post("/v1/embeddings", json={"input": "x", **given})).json()
    other = await http.post("/v1/embeddings", json={"input": "x", **given, "model": "other"})
    assert "warnings" not in made
    assert asked == [None, "alice"]
    assert len(plain["data"][0]["embedding"]) == 64
    assert len(base64.b64decode(made["data"][0]["embedding"])) == 8 * 4
    assert other.status_code == 404


async def test_forms_and_errors(http: httpx.AsyncClient) -> None:
    async def post(**body: Any) -> httpx.Response:
        return await http.post("/v1/embeddings", json=body)

    raw = (await post(input="x", encoding_format="base64")).json()["data"][0]["embedding"]
    numbers = (await post(input="x")).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(raw), "<f4").tolist() == numbers
    plain = (await post(input="x", normalize=False)).json()["data"][0]["embedding"]
    assert abs(np.linalg.norm(plain) - 1) > 0.1
    long = "so it goes " * 200
    cut = (await post(input=long, truncate_prompt_tokens=-1)).json()
    assert cut["usage"]["prompt_tokens"] == 128
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"input": long}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["x", 3]}, "input"),
        ({"input": [999_999]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x", "dimensions": 65}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "input_type": "query"}, "input_type"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ]
    for body, param in wrong:
        answer = await post(**body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param, answer.text
    told = await post(input="x", user="me", request_id="7", embed_dtype="float32")
    assert len(told.json()["warnings"]) == 2
    refused = await http.post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 400
    assert "gives embeddings only" in refused.json()["error"]["message"]


async def test_scores_of_embeddings(http: httpx.AsyncClient) -> None:
    vectors = (await http.post("/v1/embeddings", json={"input": TEXTS})).json()["data"]
    of = np.array([each["embedding"] for each in vectors])
    body = {"query": TEXTS[0], "documents": [{"text": TEXTS[1]}, TEXTS[2], TEXTS[0]]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = (await http.post(path, json=body)).json()
        results = answer["results"]
        assert [result["index"] for result in results[:1]] == [2]
        cosines = {0: of[0] @ of[1], 1: of[0] @ of[2], 2: 1.0}
        for result in results:
            assert result["relevance_score"] == pytest.approx(cosines[result["index"]], abs=1e-5)
        assert results[0]["document"] == {"text": TEXTS[0]}
        assert answer["usage"]["total_tokens"] > 0
    short = {**body, "top_n": 1, "return_documents": False}
    (best,) = (await http.post("/v1/rerank", json=short)).json()["results"]
    assert best.keys() == {"index", "relevance_score"}
    scored = (await http.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS})).json()
    assert [each["score"] for each in scored["data"]] == pytest.approx(of[0] @ of.T, abs=1e-5)
    for wrong in ({"text_1": TEXTS, "text_2": TEXTS[:2]}, {"text_1": [], "text_2": TEXTS}):
        assert (await http.post("/v1/score", json=wrong)).status_code == 400
    asked = await http.post("/v1/rerank", json={**body, "instruction": "find"})
    assert asked.json()["error"]["param"] == "instruction"


async def test_ollama(http: httpx.AsyncClient) -> None:
    wanted = (await http.post("/v1/embeddings", json={"input": TEXTS})).json()["data"]
    found = (await http.post("/api/embed", json={"model": "tiny:latest", "input": TEXTS})).json()
    for one, other in zip(found["embeddings"], wanted, strict=True):
        assert one == pytest.approx(other["embedding"], abs=1e-6)
    assert found["prompt_eval_count"] > 0
    long = {"input": "so it goes " * 200}
    assert (await http.post("/api/embed", json=long)).json()["prompt_eval_count"] == 128
    refused = await http.post("/api/embed", json={**long, "truncate": False})
    assert refused.status_code == 400
    assert "maximum context length" in refused.json()["error"]
    older = await http.post("/api/embeddings", json={"prompt": TEXTS[0], "keep_alive": "5m"})
    (vector,) = older.json().values()
    unit = np.array(vector) / np.linalg.norm(vector)
    np.testing.assert_allclose(unit, wanted[0]["embedding"], atol=1e-6)


async def test_ollama_shows_an_embedding_model(http: httpx.AsyncClient) -> None:
    shown = (await http.post("/api/show", json={"model": "tiny"})).json()
    assert shown["capabilities"] == ["embedding"]


@pytest.mark.slow
async def test_ollamas_client(server: HttpServer) -> None:
    ollama = pytest.importorskip("ollama", reason="make .venv/clients installs it")
    async with ollama.AsyncClient(host=server.url) as client:
        found = await client.embed(model="tiny", input=TEXTS, dimensions=8, keep_alive="5m")
        assert [len(vector) for vector in found.embeddings] == [8, 8, 8]
        older = await client.embeddings(model="tiny", prompt=TEXTS[0])
        cut = np.array(older.embedding[:8])
        np.testing.assert_allclose(found.embeddings[0], cut / np.linalg.norm(cut), atol=1e-6)
        with pytest.raises(ollama.ResponseError, match="maximum context length"):
            await client.embed(model="tiny", input="so it goes " * 200, truncate=False)


class TestReranker:
    """A model that answers yes or no, in the shape of Qwen3-Reranker."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> tuple[Path, Any]:
        from transformers import Qwen3Config

        tmp_path = tmp_path / "tiny-reranker"
        tmp_path.mkdir()
        model = random_model(
            tmp_path, Qwen3Config, vocab_size=VOCABULARY, head_dim=16, max_position_embeddings=2048
        )
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (MODEL_PATH / name).is_file():
                shutil.copy(MODEL_PATH / name, tmp_path / name)
        inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        inner.add_tokens(["yes", "no"])
        inner.save(str(tmp_path / "tokenizer.json"))
        return tmp_path, model

    @pytest.fixture
    def engine(self, folder: tuple[Path, Any]) -> AsyncEngine:
        return AsyncEngine(folder[0], served_name=("tiny-reranker",))

    async def test_scores_are_a_softmax_over_yes_and_no(
        self, http: httpx.AsyncClient, engine: AsyncEngine, folder: tuple[Path, Any]
    ) -> None:
        documents = ["Paris is a city.", "France's capital is Paris.", "Bread."]
        body = {"query": TEXTS[1], "documents": documents}
        answer = (await http.post("/v1/rerank", json=body)).json()
        assert "warnings" not in answer
        yes, no = (engine.tokenizer.token_id(word) for word in ("yes", "no"))
        scores = {}
        for index, document in enumerate(documents):
            text = f"<Instruct>: {INSTRUCTION}\n<Query>: {TEXTS[1]}\n<Document>: {document}"
            ids = engine.render(
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            )
            with torch.inference_mode():
                logits = folder[1](torch.tensor([ids])).logits[0, -1, [no, yes]]
            scores[index] = float(logits.softmax(0)[1])
        ordered = sorted(scores, key=lambda index: -scores[index])
        assert [result["index"] for result in answer["results"]] == ordered
        for result in answer["results"]:
            assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-4)
        pair = {"queries": TEXTS[1], "documents": documents[0], "instruction": "Other"}
        scored = (await http.post("/v1/score", json=pair)).json()["data"][0]["score"]
        assert scored != pytest.approx(scores[0], abs=1e-6)

    async def test_request_of_a_score_is_the_keys(
        self, engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "keys").write_text('[[keys]]\nname = "alice"\nkey = "sk-alice-1"\n')
        rules = AccessSource(ServerConfig(api_key_file=str(tmp_path / "keys"))).rules()
        asked: list[tuple[int, str | None]] = []
        begin = engine.begin

        def watched(prompt: Any, params: SamplingParams, options: RequestOptions) -> Any:
            asked.append((len(prompt), options.tenant))
            return begin(prompt, params, options)

        monkeypatch.setattr(engine, "begin", watched)
        await engine.start()
        server = HttpServer(engine, port=0, door=Door(rules))
        await server.start()
        headers = {"authorization": "Bearer sk-alice-1"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
            body = {"query": TEXTS[1], "documents": ["Paris is a city.", "Bread."]}
            answer = (await http.post("/v1/rerank", json=body)).json()
        await server.stop(0)
        assert [tenant for _, tenant in asked] == ["alice", "alice"]
        assert answer["usage"]["total_tokens"] == sum(length for length, _ in asked)


class TestDemoModel:
    """It was trained for neither, and that is said."""

    @pytest.fixture
    def engine(self) -> AsyncEngine:
        return AsyncEngine()

    async def test_warnings(self, http: httpx.AsyncClient, server: HttpServer) -> None:
        answer = (await http.post("/v1/embeddings", json={"input": "x"})).json()
        assert "not trained for embeddings" in answer["warnings"][0]
        old = await http.post("/api/embeddings", json={"prompt": "x"})
        assert "not trained" in old.headers["x-pyengine-warnings"]
        refused = await http.post("/v1/rerank", json={"query": "x", "documents": ["y"]})
        assert refused.status_code == 400
        assert "has no token 'yes'" in json.loads(refused.text)["error"]["message"]
