"""Log-probabilities through the engine: the model's own, reported with the text of their tokens."""

import asyncio
import gc
import math
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine, SamplingParams, Tool
from pyengine._core import Vocabulary
from pyengine.completion import Completion
from pyengine.demo import MODEL_PATH
from pyengine.errors import InvalidRequestError
from pyengine.grammar import regex
from pyengine.http.openai.logprobs import chat_logprobs
from pyengine.logprobs import LogprobRecords, TokenLogprob
from tests.models import random_llama
from tests.test_placement import engine_process

QUESTION = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"


@torch.inference_mode()
def reference(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    """The log-softmax after each of ``tokens``, [tokens, vocabulary]."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.double().log_softmax(-1)


def assert_those_of(
    model: LlamaForCausalLM, prompt: list[int], answer: Completion, count: int, tolerance: float
) -> None:
    """Every entry of ``answer`` is what ``model`` gives in its place."""
    assert answer.logprobs is not None
    table = reference(model, prompt + answer.token_ids)[len(prompt) - 1 :]
    at = -1
    for entry in answer.logprobs:
        at = answer.token_ids.index(entry.token_id, at + 1)
        row = table[at]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=tolerance)
        assert len(entry.top) == count
        best = row.sort(descending=True).values[:count].tolist()
        assert [top.logprob for top in entry.top] == pytest.approx(best, abs=tolerance)
        for top in entry.top:
            assert top.logprob == pytest.approx(float(row[top.token_id]), abs=tolerance)


RULES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "top_p": 0.8, "seed": 3},
    # No rule changes the log-probabilities that are reported.
    {"temperature": 0.7, "seed": 1, "repetition_penalty": 1.9, "frequency_penalty": 1.0},
    {"temperature": 0, "logit_bias": {5: 50.0}, "bad_words": (">", "!_")},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_log_probabilities_equal_transformers(tmp_path: Path, rules: dict[str, Any]) -> None:
    model = random_llama(tmp_path, seed=3)
    prompts = [[(7 * i * i + 3 * j) % 256 for j in range(5 + 9 * i)] for i in range(4)]
    async with AsyncEngine(tmp_path, max_sequences=3, prefill_chunk=8, max_draft=4) as engine:
        answers = await asyncio.gather(
            *(
                engine.generate(
                    prompt,
                    SamplingParams(
                        max_tokens=24,
                        ignore_eos=True,
                        skip_special_tokens=False,
                        logprobs=(0, 1, 5, 20)[index],
                        **rules,
                    ),
                    prediction=prompt,
                )
                for index, prompt in enumerate(prompts)
            )
        )
    for prompt, answer, count in zip(prompts, answers, (0, 1, 5, 20), strict=True):
        assert_those_of(model, prompt, answer, count, 2e-4)
        assert answer.logprobs is not None
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids


async def test_bfloat16_is_near() -> None:
    model = LlamaForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    async with AsyncEngine(dtype="bfloat16") as engine:
        params = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
        prompt = engine.tokenizer.encode(QUESTION.format("France"))
        answer = await engine.generate(prompt, params)
    assert answer.logprobs
    table = reference(model, prompt + answer.token_ids)[len(prompt) - 1 :]
    for at, entry in enumerate(answer.logprobs):
        assert entry.logprob == pytest.approx(float(table[at][entry.token_id]), abs=0.2)


async def test_drafts_change_nothing_and_the_demo_model_is_right() -> None:
    model = LlamaForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=4)
    told = []
    for speculation in ((), ("forced", "prediction", "ngram", "draft_model")):
        drafting: dict[str, Any] = {"draft_model": "demo", "max_draft": 6} if speculation else {}
        async with AsyncEngine(
            speculation=speculation, _adaptive_drafts=False, **drafting
        ) as engine:
            prompts = [
                engine.tokenizer.encode(QUESTION.format(place)) for place in ("France", "Japan")
            ]
            prompts.append(engine.tokenizer.encode("one two three one two three one two"))
            answers = await asyncio.gather(
                *(engine.generate(p, params, prediction=p[::-1]) for p in prompts)
            )
            if speculation:
                report = await engine.report()
                assert sum(n for name, n in report.items() if name.startswith("drafted_")) > 10
        for prompt, answer in zip(prompts, answers, strict=True):
            assert_those_of(model, prompt, answer, 4, 2e-3)
        told.append(
            [[(e.token_id, e.text_offset, e.token) for e in a.logprobs or ()] for a in answers]
        )
    assert told[0] == told[1]


def assert_agrees(answer: Completion) -> None:
    """Entries and text tell the same."""
    assert answer.logprobs is not None
    joined = b"".join(entry.bytes for entry in answer.logprobs)
    # The last token's text may be cut short.
    assert joined.decode(errors="replace").startswith(answer.text)
    last = answer.logprobs[-1]
    assert last.text_offset < len(answer.text)
    for entry in answer.logprobs:
        begun = answer.text[entry.text_offset :]
        assert begun.startswith(entry.token) or "�" in entry.token or entry is last


async def test_log_probabilities_come_with_their_text() -> None:
    async with AsyncEngine(device="simulated", simulated_step_ms=0.2, max_context=400) as engine:
        base = SamplingParams(max_tokens=90, seed=5, logprobs=2)
        whole = await engine.generate("x", base)
        assert_agrees(whole)
        assert [e.token_id for e in whole.logprobs or ()] == whole.token_ids
        cut_off = 0
        for at in (7, 20, 33):
            stop = whole.text[at : at + 4]
            for include in (False, True):
                params = SamplingParams(
                    max_tokens=90, seed=5, logprobs=2, stop=(stop, "x" * 40), include_stop=include
                )
                generation = engine.generate("x", params)
                text, entries = "", list[TokenLogprob]()
                async for update in generation:
                    assert update.logprobs is not None
                    text += update.text
                    entries += update.logprobs
                    # Log-probabilities come for the text that was sent, and for nothing else.
                    assert all(entry.text_offset < len(text) for entry in entries)
                    told = b"".join(entry.bytes for entry in entries).decode(errors="replace")
                    assert told.startswith(text)
                answer = await generation
                assert tuple(entries) == answer.logprobs
                assert answer.stop_string == stop
                assert_agrees(answer)
                cut_off += len(answer.token_ids) - len(entries)
        assert cut_off > 0


async def test_log_probabilities_come_only_when_asked_for() -> None:
    async with AsyncEngine(device="simulated") as engine:
        asking, other = await asyncio.gather(
            engine.generate("x", SamplingParams(max_tokens=5, logprobs=0)),
            engine.generate("x", SamplingParams(max_tokens=5)),
        )
        assert other.logprobs is None
        assert asking.logprobs is not None
        assert {entry.top for entry in asking.logprobs} == {()}
        for count in (-1, 21):
            with pytest.raises(InvalidRequestError, match="'logprobs' must be from 0 to 20"):
                engine.generate("x", SamplingParams(logprobs=count))


@pytest.mark.parametrize("streaming", [True, False])
async def test_requests_find_the_vocabulary_that_the_start_read(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[str] = []
    read = Vocabulary.from_tokenizer_json

    def watched(text: str) -> Vocabulary:
        readings.append(text)
        return read(text)

    monkeypatch.setattr(Vocabulary, "from_tokenizer_json", watched)
    async with AsyncEngine() as engine:
        assert readings
        readings.clear()
        generation = engine.generate("x", SamplingParams(max_tokens=3, logprobs=1))
        if streaming:
            told = [entry async for update in generation for entry in update.logprobs or ()]
        else:
            told = list((await generation).logprobs or ())
        assert all(entry.bytes for entry in told)
    assert not readings


async def test_characters_of_several_tokens_and_the_end_of_an_answer() -> None:
    async with AsyncEngine() as engine:
        params = SamplingParams(temperature=0, max_tokens=30, logprobs=1)
        answer = await engine.generate("Say: ", params, grammar=regex("né 👋!"))
        assert answer.text == "né 👋!"
        assert_agrees(answer)
        assert answer.logprobs is not None
        assert b"".join(e.bytes for e in answer.logprobs).decode() == answer.text
        waving = [entry for entry in answer.logprobs if entry.text_offset == 3]
        assert len(waving) > 1, "the tokens of one character begin together"
        # The token that ends an answer has no text.
        answer = await engine.generate(QUESTION.format("France"), params)
        assert answer.stop_token == answer.token_ids[-1]
        assert answer.logprobs is not None
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids[:-1]


@pytest.mark.slow
async def test_after_the_engine_was_killed_they_go_on() -> None:
    params = SamplingParams(
        temperature=0, max_tokens=60, ignore_eos=True, logprobs=3, stop=("zzz",)
    )
    prompt = QUESTION.format("France")
    async with AsyncEngine(placement="process") as engine:
        wanted = await engine.generate(prompt, params)
        generation = engine.generate(prompt, params)
        entries = list[TokenLogprob]()
        killed = False
        async for update in generation:
            entries += update.logprobs or ()
            if not killed and len(entries) > 10:
                killed = True
                os.kill(engine_process(engine), signal.SIGKILL)
        answer = await generation
    assert killed
    assert [(e.token_id, e.text_offset) for e in entries] == [
        (e.token_id, e.text_offset) for e in wanted.logprobs or ()
    ]
    assert answer.logprobs == tuple(entries)
    for entry, other in zip(entries, wanted.logprobs or (), strict=True):
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_records_are_checked_and_impossible_tokens_left_out() -> None:
    records = LogprobRecords(2, lambda token: bytes([token]))
    with pytest.raises(ValueError, match="no records of 1 tokens"):
        records.add((7,), b"")
    one = (3).to_bytes(4, "little") + bytes(4) + (65).to_bytes(4, "little") + bytes(4)
    records.add((66,), one + (-1).to_bytes(4, "little", signed=True) + bytes(4))
    assert records.report("abc") == ()
    (entry,) = records.report("d")
    assert (entry.token, entry.logprob, entry.text_offset) == ("B", 0.0, 3)
    assert [top.token for top in entry.top] == ["A"]
    assert not math.isnan(entry.logprob)


def test_a_token_is_spelled_once_and_collectors_of_garbage_have_no_work() -> None:
    spelled: list[int] = []

    def spelling(token: int) -> bytes:
        spelled.append(token)
        return bytes([token])

    records = LogprobRecords(20, spelling)
    likely = b"".join(struct.pack("<if", 65 + at, -1.0) for at in range(20))
    for at in range(50):
        records.add((66,), struct.pack("<if", at, -1.0) + likely)
    told = records.report("B" * 50)
    content = chat_logprobs(told)
    assert content is not None
    assert sorted(spelled) == list(range(65, 85))
    entries = [*told, *content["content"]]
    entries += [top for entry in told for top in entry.top]
    entries += [top for entry in content["content"] for top in entry.top_logprobs]
    assert len(entries) == 2 * 50 * 21
    assert not any(gc.is_tracked(entry) for entry in entries)


async def test_log_probabilities_of_a_tool_answer_however_it_is_read() -> None:
    now = Tool("now", parameters={"type": "object", "properties": {}})
    question = [{"role": "user", "content": "What is the capital of France?"}]
    for wanted in (SamplingParams(temperature=0, logprobs=1), SamplingParams(temperature=0)):
        async with AsyncEngine() as engine:
            whole = await engine.chat(question, wanted, tools=[now])
            answer = engine.chat(question, wanted, tools=[now])
            updates = [update async for update in answer]
            again = await answer
        if wanted.logprobs is None:
            assert (whole.logprobs, whole.text_logprobs) == (None, None)
            assert (again.logprobs, again.text_logprobs) == (None, None)
            continue
        assert whole.text_logprobs
        assert "".join(entry.token for entry in whole.text_logprobs) == whole.text
        assert (again.logprobs, again.text_logprobs) == (whole.logprobs, whole.text_logprobs)
        streamed = [entry for update in updates for entry in update.text_logprobs or ()]
        assert tuple(streamed) == whole.text_logprobs
