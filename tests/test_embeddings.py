"""Vectors of texts equal transformers', whatever the engine does to a request on its way."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from pyengine import AsyncEngine, Engine, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from pyengine.errors import ContextLengthError, InvalidRequestError
from tests.distributed.thread_ranks import thread_runner
from tests.embedding_models import VOCABULARY, embedding_folder, expected
from tests.torch_devices import KINDS, use_torch

SETTINGS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "chunks": {"prefill_chunk": 16, "prefix_cache": False},
    "small-steps": {"max_tokens_per_step": 48, "max_sequences": 8},
    "small-cache": {"num_blocks": 40, "prefill_chunk": 24},
}
Pooled = Literal["lasttoken", "mean"]


def prompts() -> list[list[int]]:
    """Prompts of 1 to 150 tokens; every third shares a prefix with others, some come twice."""
    numbers = random.Random(0)
    prefix = [numbers.randrange(VOCABULARY) for _ in range(70)]
    made = [
        (prefix if index % 3 == 0 else [])
        + [numbers.randrange(VOCABULARY) for _ in range(numbers.choice((1, 5, 16, 17, 80)))]
        for index in range(24)
    ]
    return made + made[:4]


@pytest.fixture(scope="module", params=["lasttoken", "mean"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[np.ndarray[Any, Any]]]:
    folder = tmp_path_factory.mktemp(request.param)
    body = embedding_folder(folder, request.param)
    pooling = request.param.removesuffix("token")
    return folder, [expected(body, prompt, pooling) for prompt in prompts()]


async def vectors(folder: Path, **settings: Any) -> list[np.ndarray[Any, Any]]:
    async with AsyncEngine(folder, **settings) as engine:
        made = await engine.embed(prompts())
        for each, prompt in zip(made, prompts(), strict=True):
            assert (each.usage.prompt_tokens, each.usage.completion_tokens) == (len(prompt), 0)
        report = await engine.report()
        assert report["free"] + report["cached"] == report["num_blocks"]
        assert report["running"] == report["waiting"] == report["completion_tokens"] == 0
        return [each.vector for each in made]


@pytest.mark.parametrize("setting", SETTINGS)
async def test_vectors_equal_transformers(
    model: tuple[Path, list[np.ndarray[Any, Any]]], setting: str
) -> None:
    found = await vectors(model[0], **SETTINGS[setting])
    np.testing.assert_allclose(found, model[1], atol=2e-5)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_vectors_equal_sentence_transformers(
    model: tuple[Path, list[np.ndarray[Any, Any]]],
) -> None:
    """Of texts, from the same folder: its tokens, pooling and normalization are read alike."""
    library = pytest.importorskip("sentence_transformers", reason="make .venv/clients installs it")
    texts = ["Once upon a time", "The capital of France is Paris.", "x", "And so it goes. " * 20]
    wanted = library.SentenceTransformer(str(model[0]), device="cpu").encode(texts)
    async with AsyncEngine(model[0]) as engine:
        found = [each.vector for each in await engine.embed(texts)]
    cosines = [
        float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
        for one, other in zip(found, wanted, strict=True)
    ]
    assert min(cosines) >= 0.9999
    np.testing.assert_allclose(found, wanted, atol=2e-5)


async def test_torch_and_two_ranks(
    model: tuple[Path, list[np.ndarray[Any, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)
    found = await vectors(model[0], tensor_parallel=2, device="cpu", threads=1, prefill_chunk=40)
    np.testing.assert_allclose(found, model[1], atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
async def test_on_torch_devices(
    model: tuple[Path, list[np.ndarray[Any, Any]]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that overlap and are replayed, beside answers that decode."""
    runners = use_torch(monkeypatch, kind)
    found = await vectors(model[0], max_tokens_per_step=64, max_sequences=8)
    np.testing.assert_allclose(found, model[1], atol=2e-5)
    assert runners


async def test_a_last_state_is_the_same_in_any_company(tmp_path: Path) -> None:
    """To the bit; a mean is summed in the pieces in which its prompt was computed."""
    embedding_folder(tmp_path, "lasttoken")
    together = await vectors(tmp_path, prefix_cache=False)
    async with AsyncEngine(tmp_path, prefix_cache=False) as engine:
        for prompt, vector in list(zip(prompts(), together, strict=True))[:6]:
            assert (await engine.embed(prompt)).vector.tobytes() == vector.tobytes()


async def test_bfloat16(model: tuple[Path, list[np.ndarray[Any, Any]]]) -> None:
    found = await vectors(model[0], dtype="bfloat16")
    cosines = [float(one @ other) for one, other in zip(found, model[1], strict=True)]
    assert min(cosines) > 0.99  # weights that are wide at random


async def test_beside_answers_with_drafts() -> None:
    """The demo model embeds and answers at once, and neither changes the other."""
    greedy = SamplingParams(temperature=0, max_tokens=40)
    text = "one two three four one two three four one two"
    async with AsyncEngine(speculation=("ngram",), _adaptive_drafts=False) as engine:
        assert not engine.vectors.declared
        alone = (await engine.generate(text, greedy)).token_ids, (await engine.embed(text)).vector
        answers, vectors = await asyncio.gather(
            asyncio.gather(*(engine.generate(text, greedy) for _ in range(4))),
            engine.embed([text, "Once upon a time", text]),
        )
    assert all(answer.token_ids == alone[0] for answer in answers)
    np.testing.assert_allclose(vectors[0].vector, alone[1], atol=1e-6)
    np.testing.assert_allclose(vectors[2].vector, alone[1], atol=1e-6)


async def test_form_and_limits(tmp_path: Path) -> None:
    body = embedding_folder(tmp_path, "lasttoken")
    async with AsyncEngine(tmp_path, max_context=128) as engine:
        ids = [5, 6, 7]
        plain = await engine.embed(ids, normalize=False)
        whole = expected(body, ids, "last", normalize=False)
        np.testing.assert_allclose(plain.vector, whole, rtol=1e-4, atol=1e-4)
        cut = (await engine.embed(ids, dimensions=16)).vector
        np.testing.assert_allclose(cut, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-5)
        # A prompt may fill the context: nothing comes behind it.
        full = await engine.embed([9] * 128)
        np.testing.assert_allclose(full.vector, expected(body, [9] * 128, "last"), atol=2e-5)
        with pytest.raises(ContextLengthError, match="maximum context length is 128"):
            await engine.embed([9] * 129)
        for wrong in (0, 65):
            with pytest.raises(InvalidRequestError, match="dimensions"):
                await engine.embed(ids, dimensions=wrong)
        with pytest.raises(InvalidRequestError, match="prompt is empty"):
            await engine.embed([[], ids])
        with pytest.raises(InvalidRequestError, match="gives embeddings only"):
            await engine.generate(ids)
        assert (await engine.report())["held"] == 0


def test_without_a_loop() -> None:
    with Engine() as engine:
        one = engine.embed("Once")
        several = engine.embed(["Once", "upon"])
    assert one.vector.tobytes() == several[0].vector.tobytes()
    assert abs(float(np.linalg.norm(one.vector)) - 1) < 1e-5


@pytest.mark.parametrize(
    ("module", "config", "why"),
    [
        ("Dense", {}, "a module 'Dense'"),
        ("Pooling", {"pooling_mode_cls_token": True}, "pools by cls"),
        ("Pooling", {"pooling_mode": "weightedmean"}, "pools by weightedmean"),
        ("Pooling", {"pooling_mode": "mean", "include_prompt": False}, "of an instruction"),
    ],
)
async def test_unsupported_pooling_of_a_folder_is_refused(
    tmp_path: Path, module: str, config: dict[str, Any], why: str
) -> None:
    embedding_folder(tmp_path, "mean")
    listed = [{"idx": 0, "path": "1_Pooling", "type": f"sentence_transformers.models.{module}"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    async with AsyncEngine(tmp_path) as engine:
        with pytest.raises(InvalidRequestError, match=why):
            await engine.embed("x")
