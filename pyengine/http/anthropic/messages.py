"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer_spec import AnswerSpec
from pyengine.http import sse
from pyengine.http.anthropic.answer import (
    MessageEvents,
    content,
    stop_reason,
    usage_object,
)
from pyengine.http.anthropic.conversation import chat_options, conversation
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    MessageAnswer,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.errors import FieldNames
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation_config import over
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(MessagesRequest)
_counted = msgspec.json.Decoder(CountTokensRequest)
_encode = msgspec.json.Encoder().encode
# The request's fields by the engine's parameters.
_FIELDS = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "grammar": "tools",
    "reasoning": "thinking",
}


async def create(exchange: "Exchange") -> None:
    """Answer a conversation."""
    exchange.names = FieldNames(_FIELDS)
    request = await exchange.decode(_decoder)
    service = exchange.service
    engine = service.require_model(request.model)
    params = _params(request, engine.default_sampling_params)
    spec, token_ids = await _prepared(exchange, request, params)
    answer_id = service.new_id("msg_")
    user = None if request.metadata is None else request.metadata.user_id
    generations = exchange.generate(
        [(token_ids, spec.params)],
        RequestOptions(tenant=user, grammar=spec.grammar),
        Asked("chat", answer_id, params, bool(request.stream)),
    )
    answer = spec.answer(generations[0])
    if request.stream:
        events = MessageEvents(
            answer_id, request.model or engine.model_name, tuple(exchange.warnings)
        )
        await sse.stream(exchange, [answer], events)
        return
    whole = await answer
    made = MessageAnswer(
        id=answer_id,
        model=request.model or engine.model_name,
        content=content(whole),
        stop_reason=stop_reason(whole),
        stop_sequence=whole.stop_string,
        usage=usage_object(whole.usage),
    )
    if warnings := list(dict.fromkeys((*exchange.warnings, *whole.warnings))):
        made.warnings = warnings
    exchange.reply(_encode(made), 200, ("server-timing", server_timing([answer.outcome.timing])))


async def count_tokens(exchange: "Exchange") -> None:
    """How many tokens the prompt of a conversation has."""
    exchange.names = FieldNames(_FIELDS)
    request = await exchange.decode(_counted)
    exchange.service.require_model(request.model)
    _, token_ids = await _prepared(exchange, request, SamplingParams())
    exchange.reply(_encode(TokenCount(len(token_ids))))


async def _prepared(
    exchange: "Exchange", request: CountTokensRequest, params: SamplingParams
) -> tuple[AnswerSpec, list[int]]:
    """How the conversation is answered, and the token ids of its prompt."""
    engine, limits = exchange.service.engine, exchange.service.limits
    reasons = engine.handler.reasons
    if request.thinking is not None and not reasons and request.thinking.type != "disabled":
        exchange.warn("'thinking' is left out: the model's format has no reasoning.")
    options = chat_options(request, reasons, limits)
    spec, token_ids = await engine.prepare(conversation(request), params, options)
    exchange.warn(*spec.warnings)
    return spec, token_ids


def _params(request: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": None if request.stop_sequences is None else tuple(request.stop_sequences),
    }
    return over(defaults, {name: value for name, value in given.items() if value is not None})
