"""The requests of an engine: begun at once, or when their prompts are prepared."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyengine._core import Timeline
from pyengine.errors import InvalidRequestError
from pyengine.messages import RequestKey
from pyengine.model.vectors import VectorSpec
from pyengine.request.adapters import AdapterNames
from pyengine.request.connection import Connection
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.request.request import RequestActor
from pyengine.request.submission import RequestBuilder
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer

Prepared = tuple[Sequence[int], SamplingParams, RequestOptions]
"""A prepared request: token ids, sampling parameters and options."""


class Requests:
    """Begins requests over an engine's connection. Belongs to the loop of that."""

    def __init__(
        self,
        connection: Connection,
        tokenizer: Tokenizer,
        timeline: Timeline,
        vectors: VectorSpec,
        model_name: str,
        adapters: AdapterNames,
    ) -> None:
        """``model_name`` is for errors."""
        self._model_name = model_name
        self._connection = connection
        self._tokenizer = tokenizer
        self._builder = RequestBuilder(tokenizer, timeline, adapters)
        self._vectors = vectors
        self._preparations: set[asyncio.Task[RequestActor]] = set()

    def begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Generation:
        """Begins a request, whose ``params`` were validated, at once."""
        frontend = self._connection.connected()
        actor = self._begun(prompt, params, options)
        return self._generation(actor, frontend.abort, params, options.prompt_logprobs)

    def begin_later(
        self,
        preparation: Coroutine[Any, Any, Prepared],
        params: SamplingParams,
        prompt_logprobs: int | None,
    ) -> Generation:
        """Begins a request when its ``preparation``, which runs as a task, is done.

        ``params`` and ``prompt_logprobs`` say whether log-probabilities are wanted.
        """
        frontend = self._connection.connected()

        async def begun() -> RequestActor:
            return self._begun(*await preparation)

        task = asyncio.create_task(begun())
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)
        return self._generation(task, frontend.abort, params, prompt_logprobs)

    async def drained(self) -> None:
        """Waits until no request is left."""
        while self._preparations:
            await asyncio.wait(self._preparations)
        await self._connection.connected().drained()

    def _begun(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> RequestActor:
        frontend = self._connection.connected()
        if options.pooling is None and not self._vectors.generates:
            raise InvalidRequestError(
                f"{self._model_name} has no head for tokens: it gives embeddings only"
            )
        submit = self._builder.submit(
            frontend.next_key(), prompt, params, options, self._connection.info
        )
        return frontend.submit(submit, self._tokenizer.token_bytes)

    def _generation(
        self,
        actor: "RequestActor | asyncio.Task[RequestActor]",
        abort: Callable[[RequestKey], None],
        params: SamplingParams,
        prompt_logprobs: int | None,
    ) -> Generation:
        # Log-probabilities are read with the bytes of tokens.
        spelled = params.logprobs is not None or prompt_logprobs is not None
        return Generation(actor, abort, self._tokenizer.load_bytes if spelled else None)
