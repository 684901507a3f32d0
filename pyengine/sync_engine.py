"""The engine for code without an event loop: a thin face that drives the async one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from pyengine.actors.request import Completion, Generation, Update
from pyengine.async_engine import AsyncEngine
from pyengine.config import EngineConfig
from pyengine.sampling import SamplingParams

T = TypeVar("T")


class Engine:
    """A blocking engine; loads the model when it is made::

        with Engine() as engine:
            print(engine.chat([{"role": "user", "content": "Hello!"}]).text)

    Any thread may call it, several at once: their requests run in one batch.

    Attributes:
        engine: The async engine, on a loop in a thread of its own.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: EngineConfig | None = None,
        **settings: Any,
    ) -> None:
        """Take what :class:`AsyncEngine` takes; returns when the model is loaded."""
        self.engine = AsyncEngine(model, config=config, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pyengine-loop", daemon=True
        )
        self._thread.start()
        try:
            self._run(self.engine.start())
        except BaseException:
            self._stop_loop()
            raise

    @overload
    def generate(
        self, prompt: str, params: SamplingParams | None = None, **options: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[str], params: SamplingParams | None = None, **options: Any
    ) -> list[Completion]: ...
    def generate(
        self, prompt: str | Sequence[str], params: SamplingParams | None = None, **options: Any
    ) -> Completion | list[Completion]:
        """Continue one prompt, or several in one batch. Options as :meth:`AsyncEngine.generate`."""
        if isinstance(prompt, str):
            return self._run(self._whole(lambda: self.engine.generate(prompt, params, **options)))
        return self._run(self._batch(prompt, params, options))

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Completion:
        """Answer a conversation. Options as :meth:`AsyncEngine.chat`."""
        return self._run(self._whole(lambda: self.engine.chat(messages, params, **options)))

    def stream(
        self, prompt: str, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[Update]:
        """Continue ``prompt`` update by update; leaving the loop early aborts."""
        return self._stream(lambda: self.engine.generate(prompt, params, **options))

    def stream_chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[Update]:
        """Answer a conversation update by update; leaving the loop early aborts."""
        return self._stream(lambda: self.engine.chat(messages, params, **options))

    def close(self) -> None:
        """End every request and stop. Idempotent."""
        if self._loop.is_closed():
            return
        self._run(self.engine.close())
        self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _whole(self, begin: Callable[[], Generation]) -> Completion:
        return await begin()

    async def _batch(
        self, prompts: Sequence[str], params: SamplingParams | None, options: dict[str, Any]
    ) -> list[Completion]:
        generations = [self.engine.generate(prompt, params, **options) for prompt in prompts]
        return [await generation for generation in generations]

    def _stream(self, begin: Callable[[], Generation]) -> Iterator[Update]:
        async def start() -> Generation:
            return begin()

        async def following(generation: Generation) -> Update | None:
            return await anext(generation, None)

        generation = self._run(start())
        try:
            while (update := self._run(following(generation))) is not None:
                yield update
        finally:
            generation.abort()

    def _run(self, awaitable: Awaitable[T]) -> T:
        async def main() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
