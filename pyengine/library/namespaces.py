"""``chat.completions``, ``completions``, ``embeddings`` and ``responses`` of an engine.

Each ``create`` takes the fields of the endpoint's request as keywords, and ``extra_body``.
"""

from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from pyengine.async_engine import AsyncEngine
from pyengine.http.app import App
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatResponse
from pyengine.http.openai.schema.completions import CompletionResponse
from pyengine.http.openai.schema.embeddings import EmbeddingResponse
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.library.answers import ChatChunk, ResponseEvent, TextChunk
from pyengine.library.client import AsyncStream, LocalClient

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

    def blocking(self, run: Run) -> "BlockingEndpoint[Whole, Part]":
        """Returns the endpoint for code without a loop; ``run`` drives its coroutines."""
        return BlockingEndpoint(self, run)


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


# By the names of OpenAI's client: the path, the type of a whole answer and that of a chunk.
_ENDPOINTS: dict[str, tuple[str, type[Any], type[Any]]] = {
    "chat.completions": ("/v1/chat/completions", ChatResponse, ChatChunk),
    "completions": ("/v1/completions", CompletionResponse, TextChunk),
    "embeddings": ("/v1/embeddings", EmbeddingResponse, dict),
    "responses": ("/v1/responses", ResponseObject, ResponseEvent),
}


class LocalEndpoints:
    """The endpoints of an engine. Lives on the loop of that."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def endpoint(self, name: str) -> Endpoint[Any, Any]:
        """Returns the endpoint that OpenAI's client calls ``name``."""
        return Endpoint(lambda: self._client, *_ENDPOINTS[name])

    @cached_property
    def _client(self) -> LocalClient:
        # Templates of requests are taken: they are the caller's own.
        return LocalClient(App(self._engine, Limits(trust_request_chat_template=True)))

    async def close(self) -> None:
        """Forget what was stored. Idempotent."""
        if "_client" in self.__dict__:
            await self._client.close()
