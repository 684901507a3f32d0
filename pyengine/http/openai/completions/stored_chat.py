"""Stored chat completions: listed, retrieved, updated, deleted, and the messages they answer."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pyengine.http.openai.schema.chat import ChatRequest, ChatResponse
from pyengine.http.openai.schema.common import check_metadata
from pyengine.http.openai.schema.sampling import tenant_of
from pyengine.http.query import Deleted, ListQuery, page_of, read_query, stored_page
from pyengine.http.store.database import Part
from pyengine.http.store.store import NOT_STORED
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_encode = msgspec.json.Encoder().encode
KIND = "chat completion"
_MESSAGES = "messages"
UNSTORED_METADATA = "'metadata' is kept with stored completions; this one is not stored."


class ChatListQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """Selects completions by model and by metadata."""

    order: Literal["asc", "desc"] = "asc"
    model: str | None = None
    metadata: dict[str, str] | None = None


class MessagesQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """Which part of the messages is wanted."""

    order: Literal["asc", "desc"] = "asc"


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a stored completion that can change."""

    metadata: dict[str, str] | None


_update = msgspec.json.Decoder(UpdateRequest)


def kept(exchange: "Exchange", request: ChatRequest) -> bool:
    """Whether the completion is to be stored.

    Raises:
        InvalidRequestError: Its metadata exceeds the bounds.
    """
    check_metadata(request.metadata)
    keep = bool(request.store) and exchange.service.store.on
    if request.store and not keep:
        exchange.warn(NOT_STORED)
    if request.metadata and not keep:
        exchange.warn(UNSTORED_METADATA)
    return keep


async def save(
    exchange: "Exchange", request: ChatRequest, params: SamplingParams, response: ChatResponse
) -> None:
    """Store a completion with what was asked for it, and the messages that it answers."""
    asked = {
        "request_id": exchange.request_id,
        "metadata": request.metadata or {},
        "input_user": tenant_of(request.user),
        "service_tier": "default",
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "tools": request.tools,
        "tool_choice": request.tool_choice,
        "response_format": request.response_format,
    }
    body = {**msgspec.to_builtins(response), **asked}
    messages = [
        _stored(message, f"{response.id}-{index}")
        for index, message in enumerate(msgspec.to_builtins(request.messages))
    ]
    part = Part(_MESSAGES, 0, _encode(messages))
    await exchange.service.store.put(KIND, exchange.owner, response.id, _encode(body), part)


def _stored(message: dict[str, Any], name: str) -> dict[str, Any]:
    """A message as it is listed: with an id, and parts apart from text."""
    given = {key: value for key, value in message.items() if value is not None}
    content = given.get("content")
    if isinstance(content, list):
        return {**given, "id": name, "content": None, "content_parts": content}
    return {**given, "id": name, "content": content, "content_parts": None}


async def list_all(exchange: "Exchange") -> None:
    """The stored completions."""
    query = read_query(exchange.scope.query_string, ChatListQuery)
    labels = {f"metadata.{name}": value for name, value in (query.metadata or {}).items()}
    page = await stored_page(exchange, KIND, query, **labels, model=query.model)
    exchange.answer(page)


async def retrieve(exchange: "Exchange") -> None:
    """A stored completion."""
    row = await exchange.service.store.get(KIND, exchange.owner, exchange.parameter)
    exchange.reply(row.body)


async def update(exchange: "Exchange") -> None:
    """Change a stored completion's metadata."""
    request = await exchange.read(_update)
    check_metadata(request.metadata)
    store = exchange.service.store
    row = await store.get(KIND, exchange.owner, exchange.parameter)

    def changed(body: bytes) -> bytes:
        return _encode({**msgspec.json.decode(body), "metadata": request.metadata or {}})

    exchange.reply(await store.change(row.id, changed) or row.body)


async def delete(exchange: "Exchange") -> None:
    """Remove a stored completion."""
    await exchange.service.store.delete(KIND, exchange.owner, exchange.parameter)
    exchange.answer(Deleted(exchange.parameter, "chat.completion.deleted"))


async def list_messages(exchange: "Exchange") -> None:
    """The messages that a stored completion answers."""
    query = read_query(exchange.scope.query_string, MessagesQuery)
    store = exchange.service.store
    await store.get(KIND, exchange.owner, exchange.parameter)
    parts = await store.parts(exchange.parameter, _MESSAGES)
    messages = [message for part in parts for message in msgspec.json.decode(part.data)]
    exchange.answer(page_of(messages, query))
