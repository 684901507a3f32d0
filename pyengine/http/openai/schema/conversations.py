"""Conversations and compacted responses: OpenAI's requests and objects."""

from typing import Any

import msgspec

from pyengine.http.openai.schema.response_object import ResponseUsage
from pyengine.http.scheduled import ScheduledRequest


class ConversationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/conversations``.

    Attributes:
        items: The items that it begins with, of the kinds that a response's input takes.
        metadata: Up to 16 texts by their names, which the client reads again.
    """

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class ConversationItems(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /v1/conversations/{conversation}/items``.

    Attributes:
        items: The items to add, of the kinds that a response's input takes.
    """

    items: list[dict[str, Any]]


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class CompactRequest(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses/compact``: the conversation to make short.

    Attributes:
        input: The input: a text, or a list of items.
        instructions: What the model was told before the input.
        previous_response_id: A stored response that the conversation goes on from.
    """

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


class CompactedResponse(msgspec.Struct, kw_only=True):
    """The items that stand for a conversation from now on."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
