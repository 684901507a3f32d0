"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer import ChatUpdate
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.http.answering import Question, answer, prepare
from pyengine.http.anthropic.answer import MessageWriter
from pyengine.http.anthropic.conversation import chat_options, conversation
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.errors import FieldNames
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation_config import over
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams

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
    await answer(exchange, await _read(exchange))


async def _read(exchange: "Exchange") -> Question[ChatUpdate]:
    exchange.names = FieldNames(_FIELDS)
    request = await exchange.decode(_decoder)
    engine = exchange.service.require_model(request.model)
    params = _params(request, engine.default_sampling_params)
    spec, token_ids = await _prepared(exchange, request, params)
    answer_id = exchange.service.new_id("msg_")
    user = None if request.metadata is None else request.metadata.user_id
    model, warnings = request.model or engine.model_name, tuple(exchange.warnings)
    return Question(
        prompts=[token_ids],
        params=spec.params,
        options=RequestOptions(tenant=user, grammar=spec.grammar),
        asked=Asked("chat", answer_id, params, bool(request.stream)),
        reading=spec.answer,
        writer=lambda _: MessageWriter(answer_id, model, warnings),
    )


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
    return await prepare(exchange, conversation(request), params, options)


def _params(request: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": None if request.stop_sequences is None else tuple(request.stop_sequences),
    }
    return over(defaults, {name: value for name, value in given.items() if value is not None})
