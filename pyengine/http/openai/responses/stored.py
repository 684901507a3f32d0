"""Stored responses: ``/v1/responses/{response}`` with ``/cancel`` and ``/input_items``."""

from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.openai.responses.background import failed, follow
from pyengine.http.openai.responses.earlier import ACTIVE, ITEMS, KIND
from pyengine.http.query import Deleted, ListQuery, page_of, read_query
from pyengine.http.store.clock import is_held

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

INCLUDED = "'include': a stored response has what its request included, and no more."


class RetrieveQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a response is to be read.

    Attributes:
        stream: As its events; of a background response only.
        starting_after: The number of the event behind which they begin.
        include: As of a request; a stored response has what its request included.
        include_obfuscation: Whether events are padded; they are as their request wanted them.
    """

    stream: bool = False
    starting_after: int | None = None
    include: list[str] | None = None
    include_obfuscation: bool | None = None


class ItemsQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """Which part of the input is wanted; ``include`` is as of a request."""

    include: list[str] | None = None


async def retrieve(exchange: "Exchange") -> None:
    """A stored response, or the events of one in the background."""
    query = read_query(exchange.scope.query_string, RetrieveQuery)
    if query.starting_after is not None and not query.stream:
        raise InvalidRequestError(
            "'starting_after' is only allowed when 'stream' is true.", param="starting_after"
        )
    response = await _response(exchange)
    if query.include is not None:
        exchange.warn(INCLUDED)
    if not query.stream:
        exchange.answer(response)
        return
    if not response["background"]:
        raise InvalidRequestError(
            "Only responses that were created with 'background' keep their events.", param="stream"
        )
    if query.include_obfuscation is not None:
        exchange.warn("'include_obfuscation': the events are as their request wanted them.")
    after = -1 if query.starting_after is None else query.starting_after
    await follow(exchange, exchange.parameter, after)


async def delete(exchange: "Exchange") -> None:
    """Remove a stored response; one that is still generated ends."""
    await exchange.service.store.delete(KIND, exchange.owner, exchange.parameter)
    await exchange.service.administration.abort(exchange.parameter)
    exchange.answer(Deleted(exchange.parameter, "response"))


async def cancel(exchange: "Exchange") -> None:
    """End a background response."""
    response, store = await _response(exchange), exchange.service.store
    if not response["background"]:
        raise InvalidRequestError("Only background responses can be cancelled.")
    while response["status"] in ACTIVE:
        # By the process that generates it, which stores how it ended.
        await exchange.service.administration.abort(exchange.parameter)
        await store.look()
        response = await _response(exchange)
    exchange.answer(response)


async def list_input_items(exchange: "Exchange") -> None:
    """The items of a stored response's input, earlier responses included."""
    query = read_query(exchange.scope.query_string, ItemsQuery)
    await _response(exchange)
    if query.include is not None:
        exchange.warn(INCLUDED)
    parts = await exchange.service.store.parts(exchange.parameter, ITEMS)
    items: list[dict[str, Any]] = [i for part in parts for i in msgspec.json.decode(part.data)]
    exchange.answer(page_of(items, query))


async def _response(exchange: "Exchange") -> dict[str, Any]:
    """The response as it stands."""
    row = await exchange.service.store.get(KIND, exchange.owner, exchange.parameter)
    response: dict[str, Any] = msgspec.json.decode(row.body)
    if response["status"] in ACTIVE and not is_held(row.lease):
        return failed(response)
    return response
