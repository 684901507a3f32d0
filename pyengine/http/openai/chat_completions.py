"""``POST /v1/chat/completions``."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from pyengine._core import Stage
from pyengine.chat.answer import ChatAnswer
from pyengine.chat.handler import Plan
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.completion import Completion
from pyengine.errors import InvalidRequestError
from pyengine.http import sse
from pyengine.http.backend import Engine
from pyengine.http.openai.blame import blamed
from pyengine.http.openai.chat_options import chat_options, predicted
from pyengine.http.openai.chunks import AnswerChunks, ChatChunks
from pyengine.http.openai.logprobs import chat_logprobs, wanted_in_chat
from pyengine.http.openai.schema.chat import (
    UNSUPPORTED_IN_CHAT,
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatRequest,
    ChatResponse,
)
from pyengine.http.openai.schema.common import (
    check_common,
    include_usage,
    refuse_unsupported,
    sampling_params,
    seeded,
    usage_object,
)
from pyengine.http.openai.structured import Constraint, check_close, constraint
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation import Generation
from pyengine.telemetry.timing import server_timing
from pyengine.tokenizer import PREDICTED_CHARACTERS

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer a conversation, in ``n`` ways."""
    request = await exchange.decode(_decoder)
    engine, limits = exchange.service.require_model(request.model), exchange.service.limits
    check_common(request, limits)
    refuse_unsupported(request, UNSUPPORTED_IN_CHAT)
    params = sampling_params(request, _max_tokens(request), wanted_in_chat(request))
    wanted = constraint(request)
    options = chat_options(request, wanted.grammar, engine.handler.template, limits)
    exchange.names = _names(request, wanted, options)
    token_ids, text, warnings = await render(engine, request.messages, options)
    plan = engine.handler.plan(text, params, options)
    check_close(wanted, plan.grammar)
    # Before the client is watched: who leaves meanwhile is seen as soon as there is what to abort.
    prediction = await tokens_of(engine, predicted(request))
    answer_id, created, n = exchange.service.new_id("chatcmpl-"), int(time.time()), request.n or 1
    generations: list[Generation] = []
    exchange.watch(generations, Asked("chat", answer_id, params, bool(request.stream)))
    for each in seeded(plan.params, n):
        generations.append(  # noqa: PERF401 (if one is refused, those before it are aborted)
            engine.generate(
                token_ids,
                each,
                priority=request.priority or 0,
                tenant=request.user,
                cache_salt=request.cache_salt,
                grammar=plan.grammar,
                close_grammar=wanted.close,
                prediction=prediction,
            )
        )
    if request.stream:
        await _stream(exchange, request, plan, generations, warnings, answer_id, created)
        return
    wholes: Sequence[Completion | ChatAnswer]
    if plan.plain:
        wholes = [await generation for generation in generations]
    else:
        wholes = [await plan.answer(generation) for generation in generations]
    response = ChatResponse(
        id=answer_id,
        created=created,
        model=engine.model_name,
        choices=[
            ChatChoice(
                index,
                _message(whole, request),
                whole.finish_reason,
                chat_logprobs(whole.logprobs),
            )
            for index, whole in enumerate(wholes)
        ],
        usage=usage_object([whole.usage for whole in wholes], n),
    )
    if told := [*warnings, *wholes[0].warnings]:
        response.warnings = told
    timing = server_timing([generation.outcome.timing for generation in generations])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


async def _stream(
    exchange: "Exchange",
    request: ChatRequest,
    plan: Plan,
    generations: list[Generation],
    warnings: list[str],
    answer_id: str,
    created: int,
) -> None:
    model, usage = exchange.service.engine.model_name, include_usage(request)
    n = len(generations)
    if plan.plain:
        chunks = ChatChunks(answer_id, created, model, usage, n=n, warnings=warnings)
        await sse.stream(exchange, generations, chunks)
        return
    answers = AnswerChunks(
        answer_id,
        created,
        model,
        usage,
        n=n,
        warnings=warnings,
        include_reasoning=request.include_reasoning is not False,
    )
    await sse.stream(exchange, [plan.answer(each) for each in generations], answers)


def _message(whole: Completion | ChatAnswer, request: ChatRequest) -> AnswerMessage:
    """The message of an answer; what it has none of is left out of it."""
    message = AnswerMessage(whole.text)
    if isinstance(whole, Completion):
        return message
    if whole.tool_calls:
        message.content = whole.text or None
        message.tool_calls = [
            AnswerToolCall(call.id, AnswerFunction(call.name, call.arguments))
            for call in whole.tool_calls
        ]
    if whole.reasoning and request.include_reasoning is not False:
        message.reasoning_content = whole.reasoning
    return message


def _max_tokens(request: ChatRequest) -> int | None:
    """``max_completion_tokens``, or ``max_tokens`` by its old name."""
    new, old = request.max_completion_tokens, request.max_tokens
    if new is None:
        return old
    if old is not None and old != new:
        raise InvalidRequestError(
            "'max_tokens' and 'max_completion_tokens' mean the same; give one.", param="max_tokens"
        )
    if new < 1:
        raise InvalidRequestError(
            f"'max_completion_tokens' must be at least 1, not {new}",
            param="max_completion_tokens",
        )
    return new


def _names(
    request: ChatRequest, wanted: Constraint, options: ChatOptions
) -> dict[str, str | Callable[[str], str]]:
    """What the engine's parameters are called in the request."""
    names: dict[str, str | Callable[[str], str]] = {
        "prompt": "messages",
        "grammar": partial(blamed, wanted, options),
        "template_arguments": "chat_template_kwargs",
    }
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


async def render(
    engine: Engine, messages: list[Message], options: ChatOptions
) -> tuple[list[int], str, list[str]]:
    """A conversation's token ids, its text, and what is left out of it."""
    engine.timeline.begin()
    text, warnings = engine.handler.render(messages, options)
    engine.timeline.end_span(Stage.TEMPLATE)
    start = engine.timeline.begin()
    engine.tokenizer.check_length(text, engine.max_context)
    token_ids = await engine.tokenizer.encode_async(text, add_special_tokens=False)
    engine.timeline.span(Stage.TOKENIZE, start)
    return token_ids, text, warnings


async def tokens_of(engine: Engine, prediction: str | None) -> list[int] | None:
    """The token ids of a prediction; what is longer than any answer is cut."""
    if prediction is None:
        return None
    prediction = prediction[: engine.max_context * PREDICTED_CHARACTERS]
    return await engine.tokenizer.encode_async(prediction, add_special_tokens=False)
