"""One HTTP request and its answer: decoding the one, writing the other, generating for it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import msgspec

from pyengine._core import Stage
from pyengine.async_engine import AsyncEngine
from pyengine.completion import Outcome
from pyengine.errors import InvalidRequestError, PyengineError, RequestAbortedError
from pyengine.http.access.keys import ApiKey
from pyengine.http.bodies import body_of, discard_body
from pyengine.http.errors import (
    FieldNames,
    ShuttingDownError,
    decode_error,
    error_body,
    error_headers,
)
from pyengine.http.fields.policy import warnings_header
from pyengine.http.limits import Limits
from pyengine.http.operations.tracing import Asked
from pyengine.http.rsgi import HTTPProtocol, Scope
from pyengine.http.service import Service
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.telemetry.preparation import begin_counting, preparing

T = TypeVar("T")

COST = "x-pyengine-cost"
"""The header by which a client asks what its request costs, and is told with a whole answer."""

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Exchange:
    """One request and its answer, from the first header to the last byte.

    Attributes:
        path: The path, as the door reads it.
        key: The API key that let the request in, if it needed one.
        cors: Headers for the web page that asks.
        parameters: What the path has in the place of its template's parameters.
        priority: Is added to that which the request asks for: work that can wait has a higher one.
        request_id: The client's ``x-request-id``, or a new one.
        names: How this request spells the engine's parameters.
        status: The status of the answer; 499 until it begins, for clients that leave before.
        error: What the request failed with.
        error_body: Writes the body of an error, in the form that the endpoint's clients know.
        body: The body, where it is to be logged.
        warnings: Warnings for ignored fields of the request, deduplicated.
        begun_ns: ``time.monotonic_ns()`` at the request's head.
        body_taken: Whether the body was read, or found to be what is not read.
        closes: Whether the connection is closed behind the answer.
        began: Whether the answer has begun, so that an error can no more get a status of its own.
        gone: Whether the request was aborted, or has ended.
    """

    __slots__ = (
        "_admitted",
        "_asked",
        "_generations",
        "_watch",
        "adapter",
        "began",
        "begun_ns",
        "body",
        "body_taken",
        "closes",
        "cors",
        "cut_off",
        "error",
        "error_body",
        "gone",
        "key",
        "names",
        "parameters",
        "path",
        "priority",
        "proto",
        "request_id",
        "scope",
        "service",
        "status",
        "warnings",
    )  # fmt: skip

    def __init__(self, service: Service, scope: Scope, proto: HTTPProtocol) -> None:
        self.service = service
        self.scope = scope
        self.proto = proto
        self.path = service.door.path(scope.path)
        self.key: ApiKey | None = None
        self.cors: list[tuple[str, str]] = []
        self.parameters: tuple[str, ...] = ()
        self.adapter: str | None = None
        self.priority = 0
        self.names = FieldNames()
        self.status = 499
        self.error: PyengineError | None = None
        self.error_body: Callable[[PyengineError], bytes] = error_body
        self.body: bytes | None = None
        self.body_taken = False
        self.closes = False
        self.warnings: dict[str, None] = {}
        self.begun_ns = time.monotonic_ns()
        self.began = False
        self.cut_off = False
        given = scope.headers.get("x-request-id")
        valid = given is not None and _REQUEST_ID.fullmatch(given)
        self.request_id: str = given if valid else service.new_id("req-")
        self._generations: list[Generation] = []
        self.gone = False
        self._admitted = 0  # answers that were counted
        self._asked: Asked | None = None
        self._watch: asyncio.Future[None] | None = None

    @property
    def parameter(self) -> str:
        """The first of the parameters."""
        return self.parameters[0]

    @property
    def owner(self) -> str:
        """The owner of objects that the request stores or may see."""
        return "" if self.key is None else self.key.name

    def detach(self, proto: HTTPProtocol) -> "Exchange":
        """An exchange that goes on with this request where its client does not wait for it.

        It counts as a request of its own from now on, in the place of this one. Serve it with
        ``service.spawn``.
        """
        made = Exchange(self.service, self.scope, proto)
        made.key, made.names, made.warnings = self.key, self.names, self.warnings
        made.request_id, made.body, made.priority = self.request_id, self.body, self.priority
        made._admitted, self._admitted = self._admitted, 0
        made.adapter = self.adapter
        return made

    def require_model(self, name: str | None) -> AsyncEngine:
        """The engine that serves the model ``name``, which may be that of an adapter: what is
        generated for this exchange is the adapter's then. None is the model that there is.

        Raises:
            ModelNotFoundError: There is none of that name.
            PyengineError: As :meth:`pyengine.http.service.Service.require_ready`.
        """
        engine, self.adapter = self.service.find_model(name)
        return engine

    async def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, as the decoder's type, of a request that generates.

        Raises:
            OverloadedError: The engine is full; the body was not read.
            InvalidRequestError: It is not that, naming the field.
            PayloadTooLargeError: It is too long.
        """
        self._admit(1)
        return await self.read(decoder)

    def _admit(self, answers: int) -> None:
        """Count answers of the request, beyond those that are counted."""
        if answers > self._admitted:
            more = answers - self._admitted
            self.service.engine.admission.enter(self.owner or None, more)
            self._admitted = answers

    @property
    def tells_cost(self) -> bool:
        """Whether the client asks what its request costs."""
        return self.scope.headers.get(COST) is not None

    async def read(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, as the decoder's type, of a request that generates nothing.

        Raises:
            InvalidRequestError: It is not that, naming the field.
            PayloadTooLargeError: It is too long.
        """
        async with self.taken_body(self.service.limits) as body:
            return self._decoded(decoder, body)

    def _decoded(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        if self.service.request_log is not None and self.service.request_log.prompts:
            self.body = body
        if self.tells_cost:
            begin_counting()
        try:
            with preparing(self.service.engine.timeline, Stage.HTTP_DECODE):
                try:
                    return decoder.decode(body)
                except msgspec.ValidationError as strict:
                    fields = self.service.fields
                    return fields.decode(body, decoder.type, self.warnings, strict)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise decode_error(error, decoder.type) from None

    @asynccontextmanager
    async def taken_body(self, limits: Limits) -> AsyncIterator[bytes]:
        """The whole body; raises as :func:`pyengine.http.bodies.body_of`."""
        async with body_of(self.proto, self.scope.headers, limits, self.service.bodies) as body:
            self.body_taken = True
            yield body

    async def leave_body(self) -> None:
        """Let the connection go on, or end, behind an answer that came before the body was read."""
        if not self.body_taken and not self.began:
            headers, limits = self.scope.headers, self.service.limits
            self.closes = not await discard_body(self.proto, headers, limits)

    def generate(
        self,
        prompts: Iterable[tuple[list[int], SamplingParams]],
        options: RequestOptions,
        asked: Asked,
        *,
        n: int = 1,
    ) -> list[Generation]:
        """Begin an answer to each prompt.

        All of them are aborted when the client leaves, the answer fails or the server stops.

        Args:
            prompts: Token ids and validated parameters of each answer.
            options: The options of every answer.
            n: Answers to the same prompt that follow each other; the first of them alone tells of
                the prompt.
            asked: The facts of the request for its spans.

        Raises:
            PyengineError: The engine refused a prompt.
            RequestAbortedError: The exchange was aborted before.
        """
        self._asked = asked
        if self.gone:
            raise RequestAbortedError("the request was aborted")
        self._watch = asyncio.ensure_future(self.proto.client_disconnect())
        self._watch.add_done_callback(self._client_left)
        return self.generate_more(prompts, options, n=n)

    def generate_more(
        self,
        prompts: Iterable[tuple[list[int], SamplingParams]],
        options: RequestOptions,
        *,
        n: int = 1,
    ) -> list[Generation]:
        """Begin more answers, once :meth:`generate` has begun some; they count as those do.

        Raises:
            PyengineError: The engine refused a prompt.
            RequestAbortedError: The exchange was aborted before.
        """
        if self.gone:
            raise RequestAbortedError("the request was aborted")
        if self.key is not None:
            if options.priority < self.key.priority:
                raise InvalidRequestError(
                    f"'priority' must be {self.key.priority} or more with this API key.",
                    param="priority",
                )
            salt = self.key.salted(options.cache_salt)
            options = replace(options, tenant=self.key.name, cache_salt=salt)
        if self.adapter is not None:
            options = replace(options, adapter=self.adapter)
        if self.priority:
            options = replace(options, priority=options.priority + self.priority)
        if self.tells_cost:
            options = replace(options, cost=True)
        begun, begin, prompts = len(self._generations), self.service.engine.begin, list(prompts)
        if self._admitted:
            self._admit(begun + len(prompts))
        alike = replace(options, prompt_logprobs=None, prompt_logprobs_from=0)
        for index, (token_ids, params) in enumerate(prompts):
            asked_of = alike if index % n else options
            self._generations.append(begin(token_ids, params, asked_of))
        return self._generations[begun:]

    def _client_left(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # retrieved, so that it is not logged
            self.abort()

    def abort(self) -> None:
        """Abort what is generated for this exchange, or was going to be."""
        self.gone = True
        for generation in self._generations:
            generation.abort()

    def end(self) -> None:
        """Stop watching the client and free what still runs; record the trace."""
        if self._watch is not None:
            # granian's awaitable holds its callback, which holds this exchange: a cycle through
            # Rust that the collector does not see. A thread of granian drops it some time later.
            self._watch.remove_done_callback(self._client_left)
            self._watch.cancel()
            self._watch = None
        self._trace()
        if self.service.request_log is not None:
            self.service.request_log.record(self, self.service.engine.model_name)
        self.abort()
        self._charge()
        if self._admitted:
            self.service.engine.admission.leave(self.owner or None, self._admitted)
            self._admitted = 0

    @property
    def generates(self) -> bool:
        """Whether the model is asked for an answer."""
        return self._admitted > 0

    @property
    def answer_id(self) -> str | None:
        """The id in the answer's body, once generation has begun."""
        return None if self._asked is None else self._asked.answer_id

    @property
    def outcomes(self) -> list[Outcome]:
        """State of the answers to the prompts, or how they ended."""
        return [generation.outcome for generation in self._generations]

    def _charge(self) -> None:
        """Charge the key for the tokens of prompts and answers."""
        if self.key is not None and self.key.limits.tokens is not None:
            usages = [outcome.usage for outcome in self.outcomes]
            used = sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)
            self.service.door.charge(self.key, used)

    def _trace(self) -> None:
        tracing = self.service.tracing
        if tracing is None or self._asked is None:
            return
        model, headers = self.service.engine.model_name, self.scope.headers
        for generation in self._generations:
            tracing.record(headers, model, self.request_id, self._asked, generation.outcome)

    def answer(self, made: object, *headers: tuple[str, str]) -> None:
        """Answer with an object in JSON; one that has a field for warnings tells of them."""
        if self.warnings and hasattr(made, "warnings"):
            made.warnings = list(self.warnings)
        self.reply(msgspec.json.encode(made), 200, *headers)

    def reply(
        self,
        body: bytes,
        status: int = 200,
        *headers: tuple[str, str],
        content_type: str = "application/json",
    ) -> None:
        """Answer, in JSON unless ``content_type`` says otherwise."""
        self.began = True
        self.status = status
        timeline = self.service.engine.timeline
        timeline.begin()
        fixed = self.headers(content_type)
        self.proto.response_bytes(status, [*fixed, *headers], body)
        timeline.end_span(Stage.SOCKET_WRITE)

    def headers(self, content_type: str) -> list[tuple[str, str]]:
        """The headers that every answer has."""
        made = [("content-type", content_type), ("x-request-id", self.request_id), *self.cors]
        if self.warnings:
            made.append(("x-pyengine-warnings", warnings_header(self.warnings)))
        if self.closes:
            made.append(("connection", "close"))
        return made

    def warn(self, *texts: str) -> None:
        """Tell the client something of its request, once."""
        self.warnings |= dict.fromkeys(texts)

    def fail(self, error: PyengineError) -> None:
        """Answer with an error, unless an answer has begun."""
        self.error = error
        if self.began:
            return
        self.reply(self.error_body(error), error.status, *error_headers(error))

    def explain(self, error: PyengineError) -> PyengineError:
        """``error``, as the client should see it.

        Parameters have the names of the request's fields. An answer that was cut off by the
        server's shutdown says so.
        """
        self.names.rename(error)
        if self.cut_off and isinstance(error, RequestAbortedError):
            error = ShuttingDownError()
        self.error = error
        return error
