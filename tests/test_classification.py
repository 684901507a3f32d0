"""Classifiers, rerankers and reward models: what transformers' heads say of the same texts."""

import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
)

from pyengine import AsyncEngine, Engine, InvalidRequestError
from pyengine.demo import MODEL_PATH
from pyengine.errors import ModelLoadError
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer

VOCABULARY = 2100
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": None,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
KINDS: dict[str, Any] = {
    "qwen3": (Qwen3Config, SHAPE),
    "llama": (LlamaConfig, SHAPE),
    "gemma2": (Gemma2Config, SHAPE),
    "gpt2": (GPT2Config, {**GPT2, "pad_token_id": None, "eos_token_id": 1, "bos_token_id": 1}),
}
TEXTS = ["Once upon a time", "The capital of France is Paris.", "x", "And so it goes. " * 20]
PROMPTS = [[5], [7, 8, 9], list(range(100, 170))]


def classifier(folder: Path, kind: str, labels: list[str], **more: Any) -> Any:
    """Save a random classifier beside the demo model's tokenizer; return transformers' own."""
    torch.manual_seed(4)
    make, shape = KINDS[kind]
    config = make(**shape, id2label=dict(enumerate(labels)), **more)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (MODEL_PATH / name).is_file():
            (folder / name).write_bytes((MODEL_PATH / name).read_bytes())
    return model


def expected(model: Any, token_ids: list[int]) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
async def test_logits_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = classifier(tmp_path, kind, ["bad", "good", "neither"])
    async with AsyncEngine(tmp_path) as engine:
        made = await engine.classify(PROMPTS)
    for each, prompt in zip(made, PROMPTS, strict=True):
        wanted = expected(model, prompt)
        np.testing.assert_allclose(each.logits, wanted, atol=5e-5)
        sums = torch.softmax(torch.tensor(wanted), 0).numpy()
        np.testing.assert_allclose(each.probabilities, sums, atol=2e-5)
        assert each.label == ["bad", "good", "neither"][int(wanted.argmax())]
        assert each.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize(
    ("labels", "more"),
    [(["reward"], {}), (["a", "b"], {"problem_type": "multi_label_classification"})],
)
def test_labels_by_themselves_have_probabilities_of_their_own(
    tmp_path: Path, labels: list[str], more: dict[str, Any]
) -> None:
    model = classifier(tmp_path, "qwen3", labels, **more)
    with Engine(tmp_path) as engine:
        [made] = engine.classify(["x y z"])
        token_ids = engine.engine.tokenizer.encode("x y z")
    wanted = expected(model, token_ids)
    np.testing.assert_allclose(made.logits, wanted, atol=5e-5)
    np.testing.assert_allclose(made.probabilities, 1 / (1 + np.exp(-wanted)), atol=2e-5)


async def test_classifier_writes_no_text_and_others_classify_nothing(tmp_path: Path) -> None:
    classifier(tmp_path, "qwen3", ["reward"])
    async with AsyncEngine(tmp_path) as engine:
        with pytest.raises(InvalidRequestError, match="no head for tokens"):
            await engine.generate("x")
    async with AsyncEngine() as demo:
        with pytest.raises(InvalidRequestError, match="classifies nothing"):
            await demo.classify(["x"])


async def test_folder_without_its_head_is_refused(tmp_path: Path) -> None:
    model = classifier(tmp_path, "qwen3", ["reward"])
    model.model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    named = config.replace('"Qwen3Model"', '"Qwen3ForSequenceClassification"')
    (tmp_path / "config.json").write_text(named)
    with pytest.raises(ModelLoadError, match=r"has no score\.weight"):
        await AsyncEngine(tmp_path).start()


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Any]:
    labels = getattr(request, "param", ["reward"])
    return tmp_path, classifier(tmp_path, "qwen3", labels)


async def served(folder: Path, calls: Any) -> None:
    async with AsyncEngine(folder) as engine:
        server = HttpServer(engine, port=0, limits=Limits())
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                await calls(engine, http)
        finally:
            await server.stop(0)


@pytest.mark.parametrize("folder", [["bad", "good"]], indirect=True)
async def test_classify_over_http(folder: tuple[Path, Any]) -> None:
    path, model = folder

    async def calls(engine: AsyncEngine, http: httpx.AsyncClient) -> None:
        for url in ("/classify", "/v1/classify"):
            answer = (await http.post(url, json={"input": TEXTS})).json()
            assert answer["object"] == "list"
            tokens = 0
            for index, (made, text) in enumerate(zip(answer["data"], TEXTS, strict=True)):
                token_ids = engine.tokenizer.encode(text)
                wanted = torch.softmax(torch.tensor(expected(model, token_ids)), 0)
                assert made["index"] == index
                assert made["num_classes"] == 2
                assert made["label"] == ["bad", "good"][int(wanted.argmax())]
                np.testing.assert_allclose(made["probs"], wanted, atol=2e-5)
                tokens += len(token_ids)
            assert answer["usage"]["prompt_tokens"] == tokens
        client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
        raw: Any = await client.post("/classify", cast_to=object, body={"input": "x"})
        assert raw["data"][0]["label"] in ("bad", "good")
        refused = await http.post("/v1/rerank", json={"query": "x", "documents": ["y"]})
        assert refused.status_code == 400
        assert "tells 2 labels apart" in refused.json()["error"]["message"]

    await served(path, calls)


async def test_reward_of_a_conversation_and_ranks_of_documents(folder: tuple[Path, Any]) -> None:
    path, model = folder

    async def calls(engine: AsyncEngine, http: httpx.AsyncClient) -> None:
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        rendered = {"messages": talk, "add_generation_prompt": False}
        tokens = (await http.post("/tokenize", json=rendered)).json()["tokens"]
        asked = {"input": tokens, "use_activation": False}
        made = (await http.post("/v1/classify", json=asked)).json()["data"][0]
        np.testing.assert_allclose(made["probs"], expected(model, tokens), atol=5e-5)
        documents = ["Paris is a city.", "Bread is baked.", "x"]
        ranked = await http.post("/v1/rerank", json={"query": "bread", "documents": documents})
        found = {each["index"]: each["relevance_score"] for each in ranked.json()["results"]}
        for index, document in enumerate(documents):
            pair = engine.tokenizer.encode("bread") + engine.tokenizer.encode(document)
            wanted = 1 / (1 + math.exp(-float(expected(model, pair)[0])))
            assert found[index] == pytest.approx(wanted, abs=2e-5)
        told = await http.post(
            "/v1/score", json={"text_1": "bread", "text_2": documents, "instruction": "x"}
        )
        assert told.status_code == 400

    await served(path, calls)


async def test_other_model_classifies_nothing_over_http() -> None:
    async def calls(engine: AsyncEngine, http: httpx.AsyncClient) -> None:
        refused = await http.post("/v1/classify", json={"input": "x"})
        assert refused.status_code == 400
        assert "classifies nothing" in refused.json()["error"]["message"]

    await served(MODEL_PATH, calls)
