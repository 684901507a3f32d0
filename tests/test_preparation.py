"""Prompts of the library are prepared off the caller's loop where that takes its time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ContextLengthError, InvalidRequestError, RequestAbortedError
from tests.answers import assert_nothing_is_left
from tests.programs import until

GREEDY = SamplingParams(temperature=0, max_tokens=8)
# Their number sends these messages to a thread; their tokens fit the demo model's context.
LONG = [{"role": role, "content": "Hi!"} for _ in range(52) for role in ("user", "assistant")] + [
    {"role": "user", "content": "What is the capital of France?"}
]
TOO_LONG = "word " * 40_000
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(num_blocks=256) as engine:
        yield engine
        await assert_nothing_is_left(engine)


class Threads:
    """The threads on which conversations are rendered and texts are tokenized."""

    def __init__(self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[int] = set()
        self.rendered: set[int] = set()
        self.go_on = threading.Event()
        self.go_on.set()
        for owner, name in ((engine.handler, "prepare"), (engine.tokenizer, "encode")):
            monkeypatch.setattr(owner, name, self._recorded(name, getattr(owner, name)))

    def _recorded(self, name: str, work: Any) -> Any:
        def recorded(*arguments: Any, **keywords: Any) -> Any:
            self.seen.add(threading.get_ident())
            if name == "prepare":
                self.rendered.add(threading.get_ident())
            assert self.go_on.wait(30)
            return work(*arguments, **keywords)

        return recorded


@pytest.fixture
def threads(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(engine, monkeypatch)


async def test_long_conversation_is_rendered_on_another_thread(
    engine: AsyncEngine, threads: Threads
) -> None:
    answer = await engine.chat(LONG, GREEDY)
    assert answer.finish_reason in ("stop", "length")
    assert threads.rendered
    assert threading.get_ident() not in threads.rendered


async def test_long_text_is_tokenized_on_another_thread(
    engine: AsyncEngine, threads: Threads
) -> None:
    with pytest.raises(ContextLengthError):
        await engine.generate("ab" * 20_000, GREEDY)
    assert threading.get_ident() not in threads.seen


async def test_template_of_a_request_is_compiled_and_rendered_on_another_thread(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    made_with = engine.handler.for_template

    def for_template(source: str | None) -> Any:
        seen.append(threading.get_ident())
        return made_with(source)

    monkeypatch.setattr(engine.handler, "for_template", for_template)
    answer = await engine.chat(LONG[-1:], GREEDY, chat_template=TEMPLATE)
    assert answer.usage.prompt_tokens
    assert seen
    assert threading.get_ident() not in seen


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}{% endfor %}"])
async def test_no_request_makes_a_tokenizer_or_reads_the_vocabulary(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, template: str | None
) -> None:
    """Each would keep all streams from going on, for a second with a large vocabulary."""

    def refuse(*_: object) -> None:
        raise AssertionError("a request has made it")

    made = SimpleNamespace(Tokenizer=SimpleNamespace(from_str=refuse))
    monkeypatch.setattr("pyengine.chat.content_tokens.tokenizers", made)
    monkeypatch.setattr(
        "pyengine.tokenizer.Vocabulary", SimpleNamespace(from_tokenizer_json=refuse)
    )
    messages = [{"role": "user", "content": "Is <|im_end|> a token?"}]
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    answer = await engine.chat(messages, params, chat_template=template)
    assert answer.usage.completion_tokens > 0


async def test_answers_are_the_same_wherever_they_are_prepared(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_thread = engine.chat(LONG, GREEDY)
    updates = [update async for update in on_thread]
    monkeypatch.setattr("pyengine.async_engine.prompts.is_small", lambda *_: True)
    on_loop = await engine.chat(LONG, GREEDY)
    assert "".join(update.text for update in updates) == on_loop.text
    assert (await on_thread).token_ids == on_loop.token_ids
    assert on_thread.prompt_token_ids == engine.render(LONG)


async def test_errors_of_a_long_prompt_are_raised_where_it_is_awaited(engine: AsyncEngine) -> None:
    answer = engine.chat([{"role": "user", "content": TOO_LONG}], GREEDY)
    generation = engine.generate(TOO_LONG, GREEDY)
    assert generation.outcome.finish is None
    for _ in range(2):
        with pytest.raises(ContextLengthError):
            await answer
        with pytest.raises(ContextLengthError):
            await generation


async def test_wrong_arguments_of_a_long_prompt_are_refused_at_once(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequestError, match="priority"):
        engine.generate(TOO_LONG, GREEDY, priority="high")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="reasoning"):
        engine.chat(LONG, GREEDY, reasoning="yes")  # type: ignore[arg-type]


async def test_abort_ends_a_preparation(engine: AsyncEngine, threads: Threads) -> None:
    threads.go_on.clear()
    answer = engine.chat(LONG, GREEDY)
    with pytest.raises(RuntimeError, match="being prepared"):
        _ = answer.prompt_token_ids
    waiting = asyncio.create_task(answer._whole())
    await asyncio.sleep(0)
    await asyncio.to_thread(answer.abort)
    with pytest.raises(RequestAbortedError):
        await waiting
    threads.go_on.set()
    await engine.drained()


async def test_dropped_and_cancelled_preparations_leave_nothing(
    engine: AsyncEngine, threads: Threads
) -> None:
    threads.go_on.clear()
    dropped = engine.chat(LONG, GREEDY)
    del dropped
    cancelled = asyncio.create_task(engine.chat(LONG, GREEDY)._whole())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    threads.go_on.set()
    await engine.drained()
    assert (await engine.report())["finished_stop"] == 0


async def test_request_that_began_unread_is_aborted_when_it_is_dropped(engine: AsyncEngine) -> None:
    endless = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
    answer = engine.chat(LONG, endless)
    await until(
        lambda: engine.connection.frontend is not None and engine.connection.frontend.requests
    )
    del answer
    await engine.drained()
