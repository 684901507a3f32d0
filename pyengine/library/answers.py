"""Chunks and events of streams as objects. Whole answers are the endpoint's own types."""

from typing import Any

import msgspec

from pyengine.http.openai.schema.common import UsageObject
from pyengine.http.openai.schema.response_object import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseObject,
)


class Chunk(msgspec.Struct, gc=False, kw_only=True):
    """Fields that the chunks of both completions share."""

    id: str
    object: str
    created: int
    model: str
    usage: UsageObject | None = None
    warnings: list[str] | None = None


class ChunkFunction(msgspec.Struct, gc=False):
    """A part of a call: its name comes first, then pieces of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ChunkToolCall(msgspec.Struct, gc=False):
    """A part of the call ``index``."""

    index: int
    id: str | None = None
    function: ChunkFunction | None = None
    type: str | None = None


class ChunkDelta(msgspec.Struct, gc=False):
    """The part of a message that a chunk adds; None is nothing."""

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChunkToolCall] | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    """A choice's part of a chunk."""

    index: int
    delta: ChunkDelta
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class ChatChunk(Chunk, gc=False, kw_only=True):
    """A chunk of a chat completion; the last has no choices where usage is asked for."""

    choices: list[ChunkChoice]


class TextChoice(msgspec.Struct, gc=False):
    """A text's part of a chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class TextChunk(Chunk, gc=False, kw_only=True):
    """A chunk of a text completion."""

    choices: list[TextChoice]


class ResponseEvent(msgspec.Struct, gc=False, kw_only=True):
    """An event of a response: its ``type`` says which of the fields it has; others are None."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    item: OutputItem | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: list[dict[str, Any]] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None
