"""The demo model, quantized at load, is as good as it was: its exam, and its probabilities."""

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pyengine import AsyncEngine, SamplingParams
from pyengine._core import StepLayout
from pyengine.demo import MODEL_PATH
from pyengine.model.cpu import layers
from pyengine.model.cpu.linear import pack
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.spec import describe
from pyengine.model.weights.matrix import Dense, Matrix
from pyengine.settings.config import EngineConfig
from tools.demo_model.data import exam
from tools.demo_model.dialogue import Dialogue, segments
from tools.demo_model.evaluate import EXAM_SEED, correct, questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def score(quantization: Any) -> float:
    """Per cent of the exam's questions that are answered right."""
    asked = [q for group in exam(EXAM_SEED, 20).values() for each in group for q in questions(each)]
    config = EngineConfig(quantization=quantization, device="cpu")
    async with AsyncEngine(config=config) as engine:
        params = SamplingParams(max_tokens=220, temperature=0)
        given = await asyncio.gather(*(engine.generate(q.prompt, params) for q in asked))
    right = [correct(q.check, q.expect, g.text) for q, g in zip(asked, given, strict=True)]
    return 100 * sum(right) / len(right)


async def test_the_score_stays() -> None:
    whole = await score(None)
    assert whole > 80
    assert await score("int8") > whole - 0.5
    assert await score("int4") > whole - 2


def dialogues() -> list[tuple[list[int], list[bool]]]:
    """Tokens, and whether the answer goes on behind each."""
    tokenizer = Tokenizer.from_file(str(MODEL_PATH / "tokenizer.json"))
    found = []
    for each in (one for group in exam(EXAM_SEED, 10).values() for one in group):
        ids: list[int] = []
        answers: list[bool] = []
        for text, is_answer in segments(Dialogue(each.turns, each.system, each.tools)):
            tokens = tokenizer.encode(text).ids
            ids += tokens
            answers += [is_answer] * len(tokens)
        found.append((ids[:256], [*answers[1:257], False][: len(ids[:256])]))
    return found


def logprobs(quantization: Any) -> NDArray[np.float64]:
    """Of every token of the dialogues' answers: [tokens, vocabulary]."""
    texts = dialogues()
    spec = describe(EngineConfig(quantization=quantization, num_blocks=16))
    layout = StepLayout(256, 1, 16, max_draft=256, vocab_size=spec.info.vocab_size)
    runner = CpuRunner(spec, layout, max_sequences=1, threads=1)
    model, found = runner._model, list[NDArray[np.float64]]()
    assert model is not None
    for ids, wanted in texts:
        step, count = runner.buffers(), len(ids)
        pages = -(-count // spec.info.block_size)
        step.num_rows, step.num_sampled, step.num_pages = 1, 1, pages
        step.num_tokens = step.num_logits = count
        step.token_ids[:count] = ids
        step.positions[:count] = step.slot_mapping[:count] = range(count)
        step.query_start[:2], step.kv_length[0] = (0, count), count
        step.page_indptr[:2], step.page_indices[:pages] = (0, pages), range(pages)
        step.logit_start[:2], step.logit_row[:count] = (0, count), 0
        step.logit_token[:count], step.mask_row[:count] = range(count), -1
        model.forward()
        model.choose()
        found.append(model.logits_rows.tensor[:count][wanted].astype(np.float64))
    logits = np.concatenate(found)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def dequantizing(weight: Matrix, bias: Any, dtype: Any) -> Any:
    """As :func:`pyengine.model.cpu.linear.pack`, with the same weights in floats."""
    return pack(Matrix((Dense(weight.dequantized(dtype)),)), bias, dtype)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_integers_hardly_change_what_the_weights_say(
    quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded = logprobs(quantization)
    monkeypatch.setattr(layers, "pack", dequantizing)
    exact = logprobs(quantization)
    divergence = (np.exp(exact) * (exact - rounded)).sum(-1)
    assert len(exact) > 1500
    assert 0 < divergence.mean() <= 0.01
    assert (exact.argmax(-1) == rounded.argmax(-1)).mean() >= 0.99


def test_int8_hardly_changes_a_probability() -> None:
    whole, rounded = logprobs(None), logprobs("int8")
    divergence = (np.exp(whole) * (whole - rounded)).sum(-1)
    assert len(whole) > 1500
    assert 0 < divergence.mean() <= 0.01
    assert (whole.argmax(-1) == rounded.argmax(-1)).mean() >= 0.99
