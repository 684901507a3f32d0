"""The one way from a request to its answer, in whatever API the request is written.

::

    read: conversation, prompts ──► generate ──► write: whole, or as a stream
      └─ the dialect ─┘                            └─ its Writer

A dialect is a function that reads a request and says with a :class:`Question` what the engine is
to be asked, and a :class:`Writer` that writes the answers in the API's own form.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import msgspec

from pyengine.chat.answer import ChatUpdate
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.completion import Update, total_cost
from pyengine.http.exchange import COST
from pyengine.http.openai.schema.sampling import seeded
from pyengine.http.operations.tracing import Asked
from pyengine.http.streams import sse
from pyengine.http.streams.event_stream import StreamForm
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

U = TypeVar("U", Update, ChatUpdate)
U_contra = TypeVar("U_contra", Update, ChatUpdate, contravariant=True)
Answers = Sequence[Any]
"""A ChatGeneration for each answer, or its Generation where all that the model writes is text."""


class Writer(Protocol[U_contra]):
    """Writes the answers to one request: their updates as chunks, or all of them as one body.

    Attributes:
        form: How the parts of a stream are told apart.
    """

    form: StreamForm

    async def chunks(self) -> sse.Chunks[U_contra]:
        """Returns how the updates look on the wire."""

    async def whole(self, answers: Answers) -> bytes:
        """Awaits the answers, stores them where that is wanted, and returns the body."""

    async def ended(self, answers: Answers) -> None:
        """Stores answers that were streamed, before the end of the stream is sent."""


class OneAnswerWriter:
    """A writer that writes the updates of one answer itself, and stores nothing."""

    async def chunks(self) -> Self:
        """Itself."""
        return self

    async def ended(self, answers: Answers) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class Question(Generic[U]):
    """What the engine is asked for a request, and how its answers are written.

    Attributes:
        prompts: The token ids of each prompt.
        params: The validated sampling parameters of every answer.
        options: The options besides sampling of every answer.
        asked: The facts of the request.
        reading: Makes the answer of its generation.
        writer: Makes the writer, once the request has begun, of generations and answers.
        n: Answers to each prompt.
    """

    prompts: Sequence[list[int]]
    params: SamplingParams
    options: RequestOptions
    asked: Asked
    reading: Callable[[Generation], Any]
    writer: Callable[[list[Generation]], Writer[U]]
    n: int = 1


async def answer(exchange: "Exchange", question: Question[U]) -> None:
    """Answers the request that was read as ``question``.

    Raises:
        PyengineError: The request is refused, or fails before its answer has begun.
    """
    answers, writer = begin(exchange, question)
    if question.asked.stream:
        await sse.stream(
            exchange, answers, await writer.chunks(), lambda: writer.ended(answers), writer.form
        )
        return
    body = await writer.whole(answers)
    timing = server_timing([each.outcome.timing for each in answers])
    cost = total_cost(outcome.usage for outcome in exchange.outcomes)
    told = [] if cost is None else [(COST, msgspec.json.encode(cost).decode())]
    exchange.reply(body, 200, ("server-timing", timing), *told)


def begin(exchange: "Exchange", question: Question[U]) -> tuple[Answers, Writer[U]]:
    """Begins the answers to a question."""
    each_params = seeded(question.params, question.n)
    generations = exchange.generate(
        ((token_ids, params) for token_ids in question.prompts for params in each_params),
        question.options,
        question.asked,
        n=1 if question.asked.stream else question.n,
    )
    return [question.reading(each) for each in generations], question.writer(generations)


def reasoning(exchange: "Exchange", wanted: bool | None, at: str) -> bool | None:
    """Whether the model is to think first, as the field ``at`` says; warns where it cannot."""
    if exchange.service.engine.handler.reasons:
        return wanted
    if wanted:
        exchange.warn(f"'{at}' is left out: the model's format has no reasoning.")
    return None


def thinking_budget(exchange: "Exchange", tokens: int | None, at: str) -> int | None:
    """The budget that the field ``at`` gives to the reasoning; warns where it cannot be kept."""
    why = exchange.service.engine.handler.unbounded
    if tokens is None or why is None:
        return tokens
    exchange.warn(f"'{at}' is left out: {why}.")
    return None


async def prepare(
    exchange: "Exchange", messages: Sequence[Message], params: SamplingParams, options: ChatOptions
) -> tuple[AnswerSpec, list[int]]:
    """Returns how a conversation is answered and the token ids of its prompt; warns the client."""
    spec, token_ids = await exchange.service.engine.prepare(messages, params, options)
    exchange.warn(*spec.warnings)
    return spec, token_ids
