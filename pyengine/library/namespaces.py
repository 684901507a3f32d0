"""``chat.completions``, ``completions``, ``embeddings`` and ``responses`` of an engine.

Each ``create`` takes the fields of the endpoint's request as keywords, and ``extra_body``.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, TypeVar, Unpack, cast

from pyengine.async_engine import AsyncEngine, ChatKeywords
from pyengine.chat.answer import ChatAnswer
from pyengine.chat.generation import ChatGeneration
from pyengine.http.openai.schema.chat import ChatResponse
from pyengine.http.openai.schema.completions import CompletionResponse
from pyengine.http.openai.schema.embeddings import EmbeddingResponse
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.library.answers import ChatChunk, ResponseEvent, TextChunk
from pyengine.library.client import AsyncStream, LocalClient
from pyengine.sampling import SamplingParams
from pyengine.sync_engine import Engine

Whole = TypeVar("Whole")
Part = TypeVar("Part")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Endpoint(Generic[Whole, Part]):
    """An endpoint of the engine's, asked in the process."""

    def __init__(
        self, client: Callable[[], LocalClient], path: str, whole: type[Whole], part: type[Part]
    ) -> None:
        """At ``path``, which answers with a ``whole``, or as a stream of ``part``."""
        self._client = client
        self._path = path
        self._whole = whole
        self._part = part

    async def create(self, **fields: Any) -> Whole | AsyncStream[Part]:
        """The answer; with ``stream=True`` a stream of its chunks.

        Raises:
            PyengineError: As the endpoint answers with: a field is unknown or out of its range,
                the engine is full, and so on.
        """
        return await self._client().create(self._path, fields, self._whole, self._part)


class Stream(Generic[Part]):
    """An answer chunk by chunk, for code without a loop: ``for chunk in stream``.

    Leaving its block, :meth:`close` and dropping it abort the request.
    """

    def __init__(self, stream: AsyncStream[Part], run: Run) -> None:
        self._stream = stream
        self._run = run

    def __iter__(self) -> Iterator[Part]:
        return self

    def __next__(self) -> Part:
        async def following() -> Part | None:
            return await anext(self._stream, None)

        chunk = self._run(following())
        if chunk is None:
            raise StopIteration
        return cast("Part", chunk)

    def close(self) -> None:
        """Abort what is left of it. Idempotent."""
        self._run(self._stream.close())

    def __enter__(self) -> "Stream[Part]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingEndpoint(Generic[Whole, Part]):
    """As :class:`Endpoint`, for code without a loop."""

    def __init__(self, endpoint: Endpoint[Whole, Part], run: Run) -> None:
        self._endpoint = endpoint
        self._run = run

    def create(self, **fields: Any) -> Whole | Stream[Part]:
        """See :meth:`Endpoint.create`."""
        answer = self._run(self._endpoint.create(**fields))
        if isinstance(answer, AsyncStream):
            return Stream(answer, self._run)
        return cast("Whole", answer)


class Chat:
    """``engine.chat``: a method, and the namespace of ``completions``."""

    def __init__(self, engine: AsyncEngine, client: Callable[[], LocalClient]) -> None:
        self._engine = engine
        self.completions = Endpoint(client, "/v1/chat/completions", ChatResponse, ChatChunk)

    def __call__(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> ChatGeneration:
        """See :meth:`pyengine.async_engine.AsyncEngine.chat`."""
        return AsyncEngine.chat(self._engine, messages, params, **options)


class BlockingChat:
    """``engine.chat`` of the engine without a loop."""

    def __init__(self, engine: Engine, chat: Chat, run: Run) -> None:
        self._engine = engine
        self.completions = BlockingEndpoint(chat.completions, run)

    def __call__(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> ChatAnswer:
        """See :meth:`pyengine.sync_engine.Engine.chat`."""
        return Engine.chat(self._engine, messages, params, **options)


def text_endpoint(client: Callable[[], LocalClient]) -> Endpoint[CompletionResponse, TextChunk]:
    """``engine.completions``."""
    return Endpoint(client, "/v1/completions", CompletionResponse, TextChunk)


def vector_endpoint(client: Callable[[], LocalClient]) -> Endpoint[EmbeddingResponse, Any]:
    """``engine.embeddings``."""
    return Endpoint(client, "/v1/embeddings", EmbeddingResponse, dict)


def response_endpoint(client: Callable[[], LocalClient]) -> Endpoint[ResponseObject, ResponseEvent]:
    """``engine.responses``."""
    return Endpoint(client, "/v1/responses", ResponseObject, ResponseEvent)
