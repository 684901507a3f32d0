"""``POST /v1/chat/completions``."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.chat.answer import ChatAnswer
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.options import ChatOptions
from pyengine.completion import Completion
from pyengine.errors import InvalidRequestError
from pyengine.http import sse
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_messages
from pyengine.http.openai.completions.chat_options import chat_options, grammar_names, predicted
from pyengine.http.openai.completions.chunks import AnswerChunks, ChatChunks
from pyengine.http.openai.completions.prompt_logprobs import (
    check_prompt_logprobs,
    in_chunks,
    vllm_logprobs,
)
from pyengine.http.openai.completions.stored_chat import kept, save
from pyengine.http.openai.completions.stream_fields import StreamFields, TokenIds
from pyengine.http.openai.logprobs import by_token_ids, chat_logprobs, wanted_in_chat
from pyengine.http.openai.schema.chat import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatRequest,
    ChatResponse,
)
from pyengine.http.openai.schema.common import (
    check_common,
    truncated,
    usage_object,
)
from pyengine.http.openai.schema.sampling import request_options, sampling_params, seeded
from pyengine.http.openai.structured import CLOSE, Constraint, constraint
from pyengine.http.operations.tracing import Asked
from pyengine.telemetry.timing import server_timing
from pyengine.tokenizer import longest_prediction

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer a conversation, in ``n`` ways."""
    request = await exchange.decode(_decoder)
    engine, limits = exchange.service.require_model(request.model), exchange.service.limits
    check_common(request, limits)
    check_messages(len(request.messages), limits)
    check_prompt_logprobs(request)
    keep = kept(exchange, request)
    logprobs, defaults = wanted_in_chat(request), engine.default_sampling_params
    params = sampling_params(request, _max_tokens(request), logprobs, defaults)
    wanted = constraint(request)
    options = chat_options(request, wanted.grammar, limits)
    exchange.names = _names(request, wanted, options)
    spec, token_ids = await engine.prepare(request.messages, params, options)
    token_ids = truncated(token_ids, request, params.max_tokens, engine.max_context)
    exchange.warn(*spec.warnings)
    # Before exchange.generate(), which notices a client that leaves meanwhile.
    prediction = await _prediction(engine, predicted(request))
    answer_id, created, n = exchange.service.new_id("chatcmpl-"), int(time.time()), request.n or 1
    generations = exchange.generate(
        ((token_ids, each) for each in seeded(spec.params, n)),
        request_options(request, spec.grammar, wanted.close, prediction, request.prompt_logprobs),
        Asked("chat", answer_id, params, bool(request.stream)),
        n=1 if request.stream else n,
    )
    answers = generations if spec.plain else [spec.answer(each) for each in generations]

    async def answered() -> ChatResponse:
        """The whole answer, once it has come."""
        wholes = [await answer for answer in answers]
        return _response(exchange, request, answer_id, created, wholes)

    if request.stream:

        async def stored() -> None:
            await save(exchange, request, params, await answered())

        scores = in_chunks(generations, request.prompt_logprobs)
        tokens = TokenIds.wanted(request, [token_ids], scores)
        chunks: Any = _chunks(exchange, request, spec, tokens, answer_id, created)
        await sse.stream(exchange, answers, chunks, stored if keep else None)
        return
    response = await answered()
    if request.return_token_ids:
        response.prompt_token_ids = token_ids
    if request.prompt_logprobs is not None:
        response.prompt_logprobs = vllm_logprobs(generations[0], request.prompt_logprobs)
    if keep:
        await save(exchange, request, params, response)
    timing = server_timing([generation.outcome.timing for generation in generations])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


def _response(
    exchange: "Exchange",
    request: ChatRequest,
    answer_id: str,
    created: int,
    wholes: Sequence[Completion | ChatAnswer],
) -> ChatResponse:
    """The answers as one response."""
    names = bool(request.return_tokens_as_token_ids)
    response = ChatResponse(
        id=answer_id,
        created=created,
        model=request.model or exchange.service.engine.model_name,
        choices=[
            ChatChoice(
                index,
                _message(whole, request),
                whole.finish_reason,
                chat_logprobs(by_token_ids(whole.logprobs) if names else whole.logprobs),
                whole.token_ids if request.return_token_ids else msgspec.UNSET,
            )
            for index, whole in enumerate(wholes)
        ],
        usage=usage_object([whole.usage for whole in wholes], len(wholes)),
    )
    if warnings := list(dict.fromkeys((*exchange.warnings, *wholes[0].warnings))):
        response.warnings = warnings
    return response


def _chunks(
    exchange: "Exchange",
    request: ChatRequest,
    spec: AnswerSpec,
    tokens: TokenIds,
    answer_id: str,
    created: int,
) -> ChatChunks | AnswerChunks:
    """How the answers are streamed."""
    model = request.model or exchange.service.engine.model_name
    fields = StreamFields.wanted(request, answer_id, created, model, exchange.warnings, tokens)
    if spec.plain:
        return ChatChunks(fields)
    return AnswerChunks(fields, request.include_reasoning is not False)


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


def _names(request: ChatRequest, wanted: Constraint, options: ChatOptions) -> FieldNames:
    grammar, schemas = grammar_names(wanted, options)
    fields = {
        "prompt": "messages",
        "grammar": grammar,
        "close_grammar": CLOSE,
        "template_arguments": "chat_template_kwargs",
    }
    if request.max_completion_tokens is not None:
        fields["max_tokens"] = "max_completion_tokens"
    return FieldNames(fields, schemas)


async def _prediction(engine: AsyncEngine, text: str | None) -> list[int] | None:
    """The token ids of a prediction; a long one is tokenized on a thread."""
    if text is None:
        return None
    text = longest_prediction(text, engine.max_context)
    return await engine.tokenizer.encode_async(text, add_special_tokens=False)
