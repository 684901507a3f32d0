"""``POST /v1/responses`` and ``/v1/responses/input_tokens``."""

from typing import TYPE_CHECKING

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.answering import Question, answer
from pyengine.http.errors import StoreFullError, StoreUnavailableError
from pyengine.http.openai.responses.background import Job
from pyengine.http.openai.responses.conversations import add
from pyengine.http.openai.responses.earlier import ITEMS, KIND, RESPONSE
from pyengine.http.openai.responses.input import stored
from pyengine.http.openai.responses.output import ResponseWriter
from pyengine.http.openai.responses.request import (
    Prepared,
    begun,
    prepared,
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

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ResponsesRequest)
_counted = msgspec.json.Decoder(InputTokensRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer in the form of OpenAI's Responses."""
    request = await exchange.decode(_decoder)
    engine = exchange.require_model(request.model)
    keep = _kept(exchange, request)
    made = await prepared(exchange, request)
    answer_id = exchange.service.new_id(RESPONSE)
    write = writing(request, answer_id, made)
    response = begun(request, answer_id, request.model or engine.model_name, made)
    response.warn(exchange.warnings)

    async def save(response: ResponseObject) -> None:
        try:
            await _save(exchange, response, made, put=keep and not request.background)
        except (StoreFullError, StoreUnavailableError) as error:
            if request.store:
                raise
            response.warn([f"'store': the response is not stored. {error}"])

    writer = ResponseWriter(response, write, save)
    question = Question(
        prompts=[made.token_ids],
        params=made.spec.params,
        options=request_options(
            request,
            made.spec.grammar,
            made.close,
            thinking_budget=made.spec.thinking_budget,
        ),
        asked=Asked("chat", answer_id, made.params, bool(request.stream)),
        reading=made.spec.answer,
        writer=lambda _: writer,
    )
    if request.background:
        items = stored(made.items, exchange.service.new_id)
        await Job(exchange, writer).begin(question, Part(ITEMS, 0, _encode(items)))
    else:
        await answer(exchange, question)


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


async def _save(
    exchange: "Exchange", response: ResponseObject, made: Prepared, *, put: bool
) -> None:
    """Add to the conversation, and store the response where it is to be ``put``."""
    if response.conversation is None and not put:
        return
    store, items = exchange.service.store, stored(made.items, exchange.service.new_id)
    if response.conversation is not None:
        output = msgspec.to_builtins(response.output)
        await add(store, response.conversation.id, items[made.earlier :] + output)
    if put:
        part = Part(ITEMS, 0, _encode(items))
        await store.put(KIND, exchange.owner, response.id, _encode(response), part)


async def count_input_tokens(exchange: "Exchange") -> None:
    """Count the tokens of a response's prompt."""
    given = await exchange.decode(_counted)
    request = ResponsesRequest(**msgspec.structs.asdict(given))
    exchange.require_model(request.model)
    made = await prepared(exchange, request)
    exchange.answer(InputTokens(len(made.token_ids)))
