"""An engine used where it cannot work says so at once."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import pyengine
from pyengine.errors import EngineDeadError, PyengineError
from tests.programs import python

MESSAGES = [{"role": "user", "content": "Hi"}]
Work = Callable[[pyengine.AsyncEngine], Coroutine[Any, Any, None]]
USES: dict[str, Work] = {}


def use(work: Work) -> Work:
    USES[work.__name__] = work
    return work


@use
async def chat(engine: pyengine.AsyncEngine) -> None:
    await engine.chat(MESSAGES)


@use
async def generate(engine: pyengine.AsyncEngine) -> None:
    await engine.generate("Hi")


@use
async def create(engine: pyengine.AsyncEngine) -> None:
    await engine.chat.completions.create(messages=MESSAGES, max_completion_tokens=3)


@use
async def report(engine: pyengine.AsyncEngine) -> None:
    await engine.report()


@pytest.mark.parametrize("work", USES.values(), ids=USES)
async def test_another_loop_is_refused(work: Work) -> None:
    async with pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1) as engine:
        errors: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(work(engine))
            except PyengineError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert "belongs to the event loop that started it" in str(errors[0])
        await work(engine)  # here it goes on


def test_the_loop_of_an_earlier_run_is_another() -> None:
    engine = pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1)
    with asyncio.Runner() as first:
        first.run(engine.start())
        with (
            asyncio.Runner() as second,
            pytest.raises(PyengineError, match="belongs to the event loop"),
        ):
            second.run(chat(engine))
        first.run(chat(engine))
        first.run(engine.close())


def test_a_closed_engine_that_is_entered_on_another_loop_says_that_it_was_closed() -> None:
    engine = pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1)

    async def enter() -> None:
        async with engine:
            pass

    asyncio.run(enter())
    with pytest.raises(EngineDeadError, match="make a new one"):
        asyncio.run(enter())


FORKS = """
import asyncio, os, sys, pyengine

engine = pyengine.AsyncEngine(device="simulated", placement=sys.argv[1])
app = pyengine.asgi_app(engine)

async def answer():
    async with engine:
        short = pyengine.SamplingParams(max_tokens=4)
        answer = await engine.chat([{"role": "user", "content": "Hi"}], short)
        return answer.finish_reason

for _ in range(2):
    if not os.fork():
        try:
            print(asyncio.run(answer()), flush=True)
        finally:
            os._exit(0)
for _ in range(2):
    os.wait()
"""


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_workers_forked_from_a_loaded_application_have_an_engine_each(placement: str) -> None:
    assert python(FORKS, placement).split() == ["length", "length"]


def test_a_loop_other_than_asyncios_is_refused() -> None:
    engine = pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1)
    with pytest.raises(PyengineError, match="needs a running asyncio loop"):
        engine.start().send(None)  # as another library's loop runs it


async def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1) as engine:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            with pytest.raises(PyengineError, match="from which this one was forked"):
                await chat(engine)
        await chat(engine)


async def test_an_attribute_of_an_answer_that_was_not_awaited_says_so() -> None:
    async with pyengine.AsyncEngine(device="simulated", simulated_step_ms=0.1) as engine:
        for handle in (engine.chat(MESSAGES), engine.generate("Hi")):
            with pytest.raises(AttributeError, match=r"answer = await it, then answer\.text"):
                handle.text  # type: ignore[union-attr]  # noqa: B018
            with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
                handle.nothing  # type: ignore[union-attr]  # noqa: B018


def test_an_engine_that_is_dropped_warns_and_ends_its_threads() -> None:
    before = set(threading.enumerate())
    engine = pyengine.Engine(device="simulated")
    threads = set(threading.enumerate()) - before
    assert any(thread.name == "pyengine-loop" for thread in threads)
    with pytest.warns(ResourceWarning, match="unclosed engine of pyengine-demo"):
        del engine  # by its count of references, at once
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
