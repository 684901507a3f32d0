"""The two engines with the namespaces of OpenAI's client."""

from functools import cached_property
from typing import Any

from pyengine import async_engine, sync_engine
from pyengine.http.app import App
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.completions import CompletionResponse
from pyengine.http.openai.schema.embeddings import EmbeddingResponse
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.library.answers import ResponseEvent, TextChunk
from pyengine.library.client import LocalClient
from pyengine.library.namespaces import (
    BlockingChat,
    BlockingEndpoint,
    Chat,
    Endpoint,
    response_endpoint,
    text_endpoint,
    vector_endpoint,
)


class AsyncEngine(async_engine.AsyncEngine):
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    ``engine.chat.completions.create(...)``, and the same of ``completions``, ``embeddings`` and
    ``responses``, take and give what OpenAI's client does; see :mod:`pyengine.library`. All else is
    as :class:`pyengine.async_engine.AsyncEngine` has it, whose documentation this goes on from.
    """

    @cached_property
    def chat(self) -> Chat:  # called as the method is
        """Answers conversations: ``chat(messages)``, or ``chat.completions.create(...)`` as
        OpenAI's client spells it.
        """
        return Chat(self, lambda: self._client)

    @cached_property
    def completions(self) -> Endpoint[CompletionResponse, TextChunk]:
        """``completions.create(...)``, as OpenAI's client spells it."""
        return text_endpoint(lambda: self._client)

    @cached_property
    def embeddings(self) -> Endpoint[EmbeddingResponse, Any]:
        """``embeddings.create(...)``, as OpenAI's client spells it."""
        return vector_endpoint(lambda: self._client)

    @cached_property
    def responses(self) -> Endpoint[ResponseObject, ResponseEvent]:
        """``responses.create(...)``, as OpenAI's client spells it."""
        return response_endpoint(lambda: self._client)

    @cached_property
    def _client(self) -> LocalClient:
        return LocalClient(App(self, Limits(request_templates=True)))  # they are the caller's own

    async def close(self) -> None:
        """As the engine's, and forget what the namespaces have stored. Idempotent."""
        await super().close()
        if "_client" in self.__dict__:
            await self._client.close()


class Engine(sync_engine.Engine):
    """A blocking engine; loads the model when it is made::

        with Engine() as engine:
            print(engine.chat([{"role": "user", "content": "Hello!"}]).text)

    As :class:`AsyncEngine` without a loop. Any thread may call it, several at once: their requests
    run in one batch.

    Attributes:
        engine: The async engine, on a loop in a thread of its own.
    """

    engine: AsyncEngine
    kind = AsyncEngine

    @cached_property
    def chat(self) -> BlockingChat:  # called as the method is
        """Answers conversations: ``chat(messages)``, or ``chat.completions.create(...)``."""
        return BlockingChat(self, self.engine.chat, self._run)

    @cached_property
    def completions(self) -> BlockingEndpoint[CompletionResponse, TextChunk]:
        """``completions.create(...)``, as OpenAI's client spells it."""
        return BlockingEndpoint(self.engine.completions, self._run)

    @cached_property
    def embeddings(self) -> BlockingEndpoint[EmbeddingResponse, Any]:
        """``embeddings.create(...)``, as OpenAI's client spells it."""
        return BlockingEndpoint(self.engine.embeddings, self._run)

    @cached_property
    def responses(self) -> BlockingEndpoint[ResponseObject, ResponseEvent]:
        """``responses.create(...)``, as OpenAI's client spells it."""
        return BlockingEndpoint(self.engine.responses, self._run)
