"""Thinking budgets: exact, with drafts, grammars and on every device, and the answer goes on."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pyengine import AsyncEngine, SamplingParams
from pyengine.chat.answer import ChatAnswer
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import json_schema
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.answers import answers, assert_nothing_is_left
from tests.torch_devices import KINDS, use_torch

OPEN, CLOSE = 7, 8
TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
THINKING = TURNS + "<think>"
QUESTION: list[Any] = [{"role": "user", "content": "Count to three."}]
BUDGETS = (0, 1, 2, 7, 30)
CITY = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
# The model itself never ends its reasoning: neither with the mark nor with the turn.
ENDLESS: dict[str, Any] = {"ignore_eos": True, "logit_bias": {CLOSE: -100.0}}

SETTINGS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "simulated": {"device": "simulated", "simulated_step_ms": 0.2},
    "drafts": {"speculation": ("forced", "ngram"), "_adaptive_drafts": False},
    "draft model": {
        "speculation": ("draft_model",),
        "draft_model": "demo",
        "_adaptive_drafts": False,
    },
}


async def ask(
    engine: AsyncEngine, budgets: tuple[int | None, ...], logprobs: int | None = None
) -> list[ChatAnswer]:
    """One answer with each budget, all at once; of one seed, so that they begin alike."""
    params = SamplingParams(seed=3, max_tokens=48, logprobs=logprobs, **ENDLESS)
    asked = (
        engine.chat(QUESTION, params, chat_template=THINKING, thinking_budget=budget)
        for budget in budgets
    )
    return list(await answers(asked))


async def check(engine: AsyncEngine) -> None:
    (free,) = await ask(engine, (None,))
    assert free.usage.completion_tokens == free.usage.reasoning_tokens == 48
    after = engine.tokenizer.encode("\n\n", add_special_tokens=False)
    together = await ask(engine, BUDGETS)
    for budget, answer in zip(BUDGETS, together, strict=True):
        ids = answer.token_ids
        assert ids[: budget + 1 + len(after)] == [*free.token_ids[:budget], CLOSE, *after]
        assert answer.usage.reasoning_tokens == budget + 1
        assert bool(answer.text)
        assert bool(answer.reasoning) == (budget > 0)
        assert len(ids) == 48
    # Where log-probabilities are wanted every token is sampled: they are the same.
    scored = await ask(engine, BUDGETS, logprobs=0)
    assert [each.token_ids for each in scored] == [each.token_ids for each in together]
    alone = [(await ask(engine, (budget,)))[0] for budget in BUDGETS]
    assert [each.token_ids for each in alone] == [each.token_ids for each in together]
    await assert_nothing_is_left(engine)


@pytest.mark.parametrize(
    "name",
    [name if name == "drafts" else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS],
)
async def test_reasoning_has_as_many_tokens_as_its_budget(name: str) -> None:
    async with AsyncEngine(chat_format="qwen3", **SETTINGS[name]) as engine:
        await check(engine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_budgets_on_torch_devices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, kind)
    async with AsyncEngine(chat_format="qwen3") as engine:
        await check(engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(chat_format="qwen3") as engine:
        yield engine
        await assert_nothing_is_left(engine)


@pytest.mark.asyncio(loop_scope="module")
async def test_answer_behind_a_budget_follows_its_grammar(engine: AsyncEngine) -> None:
    for budget in BUDGETS:
        answer = await engine.chat(
            QUESTION,
            SamplingParams(seed=5, max_tokens=80, logit_bias={CLOSE: -100.0}),
            chat_template=THINKING,
            grammar=json_schema(CITY),
            close_grammar=True,
            thinking_budget=budget,
        )
        assert answer.usage.reasoning_tokens == budget + 1
        assert answer.text.startswith("{")
        assert answer.finish_reason == "stop"


@pytest.mark.asyncio(loop_scope="module")
async def test_reasoning_that_the_model_opens_is_bounded_too(engine: AsyncEngine) -> None:
    params = SamplingParams(max_tokens=12, logit_bias={OPEN: 100.0}, temperature=0)
    answer = await engine.chat(QUESTION, params, chat_template=TURNS, thinking_budget=4)
    assert answer.token_ids[:6] == [OPEN] * 5 + [CLOSE]
    # What the model opens again is text.
    assert answer.token_ids[-1] == OPEN
    assert answer.usage.completion_tokens == 12


@pytest.mark.asyncio(loop_scope="module")
async def test_budgets_that_are_none_are_refused(engine: AsyncEngine) -> None:
    for budget in (-1, 2**31, True, "3"):
        with pytest.raises(InvalidRequestError, match="'thinking_budget' must be"):
            await engine.chat(QUESTION, thinking_budget=budget)  # type: ignore[arg-type]
    params = SamplingParams(allowed_token_ids=(20, 21))
    with pytest.raises(InvalidRequestError, match="must have the tokens that close"):
        await engine.chat(QUESTION, params, chat_template=THINKING, thinking_budget=3)


async def test_budget_is_refused_where_the_format_is_not_known() -> None:
    async with AsyncEngine(chat_format="none") as engine:
        with pytest.raises(UnsupportedParameterError, match="chat format is not known"):
            await engine.chat(QUESTION, thinking_budget=3)


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM": ("/v1/chat/completions", {"thinking_token_budget": 5}),
    "llama.cpp": ("/v1/chat/completions", {"reasoning_budget": 5}),
    "Anthropic's form in a chat": (
        "/v1/chat/completions",
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
    ),
    "OpenRouter": ("/v1/chat/completions", {"reasoning": {"max_tokens": 5}}),
}


@pytest.mark.asyncio(loop_scope="module")
async def test_every_client_gives_the_budget_in_its_own_field(engine: AsyncEngine) -> None:
    server = HttpServer(engine, port=0, limits=Limits(trust_request_chat_template=True))
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for path, fields in BODIES.values():
            body = {"messages": QUESTION, "chat_template": THINKING, "max_tokens": 20, "seed": 1}
            made = (await client.post(path, json=body | ENDLESS_BODY | fields)).json()
            assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6, made
        both = {"thinking_token_budget": 5, "reasoning": {"max_tokens": 6}}
        refused = await client.post("/v1/chat/completions", json={"messages": QUESTION} | both)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "reasoning.max_tokens"
    await server.stop(0)


ENDLESS_BODY: dict[str, Any] = {"ignore_eos": True, "logit_bias": {str(CLOSE): -100}}
