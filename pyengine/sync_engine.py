"""The engine for code without an event loop: it drives an AsyncEngine on a thread."""

import asyncio
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypeVar, Unpack, cast, overload

from pyengine.async_engine import AsyncEngine
from pyengine.async_engine.endpoints import Namespace, with_completions
from pyengine.chat.answer import ChatAnswer, ChatUpdate
from pyengine.chat.options import ChatKeywords
from pyengine.completion import Completion, Update
from pyengine.errors import EngineDeadError
from pyengine.request.embedding import Classification, Embedding
from pyengine.request.options import EmbedKeywords, GenerateKeywords
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.settings.keywords import EngineSettings

T = TypeVar("T")
Seen = TypeVar("Seen", covariant=True)
Prompt: TypeAlias = str | Sequence[int]


class Running(Protocol[Seen]):
    """A Generation or a ChatGeneration."""

    def __aiter__(self) -> AsyncIterator[Seen]: ...

    async def __anext__(self) -> Seen: ...

    def abort(self) -> None:
        """Stop."""


class Engine:
    """A blocking engine; loads the model when it is made::

        with Engine() as engine:
            print(engine.chat([{"role": "user", "content": "Hello!"}]).text)

    As :class:`AsyncEngine` without a loop. Any thread may call it, several at once: their requests
    run in one batch.

    Attributes:
        engine: The async engine, on a loop in a thread of its own.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: EngineConfig | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        """Take what :class:`AsyncEngine` takes; returns when the model is loaded."""
        self.engine = AsyncEngine(model, config=config, **settings)
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="pyengine-loop", daemon=True
        )
        self._thread.start()
        try:
            self._run(self.engine.start())
        except BaseException:
            self.close()
            raise

    # To a type checker a str is also a sequence of prompts; the first overload that fits counts.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Completion | list[Completion]:
        """Continue one prompt (text or token ids), or several of them in one batch.

        Options as :meth:`AsyncEngine.generate`.
        """
        if isinstance(prompt, str) or (prompt and all(isinstance(t, int) for t in prompt)):
            one = cast("Prompt", prompt)
            return self._run(self._whole(lambda: self.engine.generate(one, params, **options)))
        return self._run(self._batch(cast("Sequence[Prompt]", prompt), params, options))

    @with_completions
    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> ChatAnswer:
        """Answer a conversation. Options as :meth:`AsyncEngine.chat`."""
        return self._run(self._whole(lambda: self.engine.chat(messages, params, **options)))

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> Embedding: ...
    @overload
    def embed(
        self,
        prompt: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> list[Embedding]: ...
    def embed(self, prompt: Any, **options: Any) -> Embedding | list[Embedding]:
        """The vector of a prompt, or of several in one batch; see :meth:`AsyncEngine.embed`."""
        made: Embedding | list[Embedding] = self._run(self.engine.embed(prompt, **options))
        return made

    def classify(
        self, prompts: Sequence[Prompt], **options: Unpack[EmbedKeywords]
    ) -> list[Classification]:
        """What a classifier says of each prompt; see :meth:`AsyncEngine.classify`."""
        return self._run(self.engine.classify(prompts, **options))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Iterator[Update]:
        """Continue ``prompt`` update by update; leaving the loop early aborts."""
        return self._stream(lambda: self.engine.generate(prompt, params, **options))

    def stream_chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> Iterator[ChatUpdate]:
        """Answer a conversation update by update; leaving the loop early aborts."""
        return self._stream(lambda: self.engine.chat(messages, params, **options))

    completions = Namespace("completions")
    embeddings = Namespace("embeddings")
    responses = Namespace("responses")

    def endpoint(self, name: str) -> Any:
        """The endpoint that OpenAI's client calls ``name``, as the namespaces have it."""
        return self.engine.endpoint(name).blocking(self._run)

    def close(self) -> None:
        """End every request and stop. Idempotent."""
        with self._lock:
            if self._closed:
                return
            ending = self._end()
        self._thread.join()
        ending.result()

    def _end(self) -> "Future[None]":
        """Begin to close the engine and, when that is done, the loop; from any thread."""
        self._closed = True
        ending = asyncio.run_coroutine_threadsafe(_ended(self.engine), self._loop)
        loop = self._loop
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        return ending

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Stop an engine that was dropped without :meth:`close`, and warn of it."""
        if getattr(self, "_closed", True) or sys.is_finalizing():
            return
        warn(f"unclosed engine of {self.engine.model_name}", ResourceWarning, source=self)
        self._end()  # not waited for: a collection may run on the loop's thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _whole(self, begin: Callable[[], Awaitable[T]]) -> T:
        return await begin()

    async def _batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None,
        options: GenerateKeywords,
    ) -> list[Completion]:
        generations = [self.engine.generate(prompt, params, **options) for prompt in prompts]
        return [await generation for generation in generations]

    def _stream(self, begin: Callable[[], Running[T]]) -> Iterator[T]:
        async def start() -> Running[T]:
            return begin()

        async def following(generation: Running[T]) -> T | None:
            return await anext(generation, None)

        generation = self._run(start())
        try:
            while (update := self._run(following(generation))) is not None:
                yield update
        finally:
            generation.abort()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the loop and wait; an interrupt here cancels it there."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise EngineDeadError("the engine was closed; make a new one")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _ended(engine: AsyncEngine) -> None:
    """Close the engine, and let pending calls end with its error."""
    await engine.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=1.0)
        for task in late:
            task.cancel()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, and close it."""
    try:
        loop.run_forever()
    finally:
        loop.close()
