"""``/v1/conversations`` and their items, which responses go on from and are added to.

A conversation is stored with all of its items: adding some takes time in proportion to those that
are there.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.http.errors import NoSuchObjectError
from pyengine.http.openai.completions.stored_chat import UpdateRequest
from pyengine.http.openai.responses.earlier import with_referenced
from pyengine.http.openai.responses.input import read_items, stored
from pyengine.http.openai.responses.stored import INCLUDED, ItemsQuery
from pyengine.http.openai.schema.common import check_metadata
from pyengine.http.openai.schema.conversations import (
    ConversationItems,
    ConversationObject,
    ConversationRequest,
)
from pyengine.http.query import Deleted, ListQuery, page_of, read_query
from pyengine.http.store.store import Store

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

KIND = "conversation"
_created = msgspec.json.Decoder(ConversationRequest)
_added = msgspec.json.Decoder(ConversationItems)
_updated = msgspec.json.Decoder(UpdateRequest)
_shown = msgspec.json.Decoder(ConversationObject)
_encode = msgspec.json.Encoder().encode
Items = list[dict[str, Any]]


async def create(exchange: "Exchange") -> None:
    """Begin a conversation."""
    request = await exchange.read(_created)
    check_metadata(request.metadata)
    name, now = exchange.service.new_id("conv_"), int(time.time())
    made = ConversationObject(id=name, created_at=now, metadata=request.metadata or {})
    items = await _read(exchange, request.items or (), ())
    body = _encode({**msgspec.to_builtins(made), "items": items})
    await exchange.service.store.put(KIND, exchange.owner, name, body)
    exchange.answer(made)


async def retrieve(exchange: "Exchange") -> None:
    """A conversation."""
    row = await exchange.service.store.get(KIND, exchange.owner, exchange.parameter)
    exchange.answer(_shown.decode(row.body))


async def update(exchange: "Exchange") -> None:
    """Change a conversation's metadata."""
    request = await exchange.read(_updated)
    check_metadata(request.metadata)
    await _change(exchange, {"metadata": request.metadata or {}})


async def delete(exchange: "Exchange") -> None:
    """Remove a conversation with its items."""
    await exchange.service.store.delete(KIND, exchange.owner, exchange.parameter)
    exchange.answer(Deleted(exchange.parameter, "conversation.deleted"))


async def add_items(exchange: "Exchange") -> None:
    """Add items to a conversation."""
    request = await exchange.read(_added)
    there = await items_in(exchange, exchange.parameter)
    items = await _read(exchange, request.items, there)
    await add(exchange.service.store, exchange.parameter, items)
    whole = ListQuery(limit=max(1, len(items)), order="asc")
    exchange.answer(page_of(items, whole))


async def list_items(exchange: "Exchange") -> None:
    """The items of a conversation."""
    query = read_query(exchange.scope.query_string, ItemsQuery)
    if query.include is not None:
        exchange.warn(INCLUDED)
    exchange.answer(page_of(await items_in(exchange, exchange.parameter), query))


async def retrieve_item(exchange: "Exchange") -> None:
    """An item of a conversation."""
    exchange.answer(_item(exchange, await items_in(exchange, exchange.parameter)))


async def delete_item(exchange: "Exchange") -> None:
    """Remove an item of a conversation."""
    gone = _item(exchange, await items_in(exchange, exchange.parameter))["id"]
    await _change(exchange, {}, without=gone)


async def items_in(exchange: "Exchange", name: str) -> Items:
    """The items of a conversation, the first added first.

    Raises:
        NoSuchObjectError: There is no such conversation.
    """
    row = await exchange.service.store.get(KIND, exchange.owner, name)
    items: Items = msgspec.json.decode(row.body)["items"]
    return items


async def add(store: Store, name: str, items: Items) -> None:
    """Add items to a conversation, unless it was removed meanwhile."""

    def added(body: bytes) -> bytes:
        whole = msgspec.json.decode(body)
        return _encode({**whole, "items": whole["items"] + items})

    await store.change(name, added)


async def _change(
    exchange: "Exchange", fields: Mapping[str, Any], without: str | None = None
) -> None:
    """Give a conversation other fields, and take an item out of it; answer with it."""
    store = exchange.service.store
    row = await store.get(KIND, exchange.owner, exchange.parameter)

    def changed(body: bytes) -> bytes:
        whole = {**msgspec.json.decode(body), **fields}
        return _encode({**whole, "items": [i for i in whole["items"] if i["id"] != without]})

    body = await store.change(row.id, changed) or row.body
    exchange.answer(_shown.decode(body))


async def _read(
    exchange: "Exchange", given: Sequence[dict[str, Any]], there: Sequence[dict[str, Any]]
) -> Items:
    """The items of a request as they are stored, beside those that are there."""
    service = exchange.service
    found = await with_referenced(exchange, given, there)
    items = read_items(found, service.fields, exchange.warnings)
    return stored(items, service.new_id, [item["id"] for item in there])


def _item(exchange: "Exchange", items: Items) -> dict[str, Any]:
    name = exchange.parameters[1]
    found = next((item for item in items if item["id"] == name), None)
    if found is None:
        raise NoSuchObjectError(f"The conversation has no item with the id '{name[:100]}'.")
    return found
