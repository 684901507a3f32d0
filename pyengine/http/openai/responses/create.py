"""``POST /v1/responses`` and ``/v1/responses/input_tokens``."""

from typing import TYPE_CHECKING

import msgspec

from pyengine.chat.generation import ChatGeneration
from pyengine.errors import InvalidRequestError
from pyengine.http import sse
from pyengine.http.openai.responses.background import Job
from pyengine.http.openai.responses.output import ResponseEvents, whole_response
from pyengine.http.openai.responses.request import (
    ITEMS,
    KIND,
    Prepared,
    begun,
    items_of,
    prepare,
    writing,
)
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.http.openai.schema.responses import (
    InputTokens,
    InputTokensRequest,
    ResponsesRequest,
)
from pyengine.http.openai.schema.sampling import request_options
from pyengine.http.operations.tracing import Asked
from pyengine.http.store.database import Part
from pyengine.http.store.store import NOT_STORED
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ResponsesRequest)
_counted = msgspec.json.Decoder(InputTokensRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer the conversation of the input items."""
    request = await exchange.decode(_decoder)
    service = exchange.service
    engine = service.require_model(request.model)
    keep = _kept(exchange, request)
    made = await prepare(exchange, request)
    answer_id, write = service.new_id("resp_"), writing(exchange, request)
    response = begun(request, answer_id, request.model or engine.model_name, made)
    response.warn(exchange.warnings)
    options = request_options(request, made.spec.grammar)
    asked = Asked("chat", answer_id, made.params, bool(request.stream))
    events = ResponseEvents(response, write)

    def generate(at: "Exchange") -> ChatGeneration:
        [generation] = at.generate([(made.token_ids, made.spec.params)], options, asked)
        return made.spec.answer(generation)

    if request.background:
        items = Part(ITEMS, 0, _encode(items_of(exchange, made)))
        await Job(exchange, events).begin(generate, items, stream=bool(request.stream))
        return
    answer = generate(exchange)

    async def save(response: ResponseObject) -> None:
        if keep:
            await _save(exchange, response, made)

    if request.stream:
        await sse.stream(exchange, [answer], events, lambda: save(events.response))
        return
    whole = await answer
    response.warn(whole.warnings)
    response = whole_response(response, whole, write)
    await save(response)
    timing = server_timing([answer.outcome.timing])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


def _kept(exchange: "Exchange", request: ResponsesRequest) -> bool:
    """Whether the response is to be stored.

    Raises:
        InvalidRequestError: Fields contradict each other.
    """
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    keep = request.store is not False and exchange.service.store.on
    if request.background and not keep:
        why = "'store' is false" if request.store is False else "this server stores no answers"
        raise InvalidRequestError(
            f"'background' needs the response to be stored, and {why}.", param="background"
        )
    if request.store and not keep:
        exchange.warn(NOT_STORED)
    return keep


async def _save(exchange: "Exchange", response: ResponseObject, made: Prepared) -> None:
    items = Part(ITEMS, 0, _encode(items_of(exchange, made)))
    await exchange.service.store.put(KIND, exchange.owner, response.id, _encode(response), items)


async def count_input_tokens(exchange: "Exchange") -> None:
    """How many tokens the prompt of a response has."""
    given = await exchange.decode(_counted)
    request = ResponsesRequest(**msgspec.structs.asdict(given))
    exchange.service.require_model(request.model)
    made = await prepare(exchange, request)
    exchange.reply(_encode(InputTokens(len(made.token_ids))))
