"""Messages: Anthropic's request and response, as far as a server of texts and tools has them."""

from typing import Any, Literal

import msgspec

from pyengine.grammar.algebra import KeyOrder


class Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A block of text."""

    text: str


class Thinking(msgspec.Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """What the assistant thought before an answer. A signature is not read."""

    thinking: str


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call of the assistant's."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(msgspec.Struct, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """What a tool gave. ``is_error`` says nothing that its text does not say."""

    tool_use_id: str
    content: str | list[Text] | None = None


Block = Text | Thinking | ToolUse | ToolResult


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the conversation. The answer goes on with a last one of the assistant's."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the client's; ``key_order`` as in OpenAI's chat completions here."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    key_order: KeyOrder | None = None
    type: str | None = None


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the model thinks first, where its template has a switch for that."""

    type: Literal["enabled", "disabled", "adaptive"]


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """``user_id`` is the tenant, as ``user`` is in OpenAI's requests."""

    user_id: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages/count_tokens``: the fields that make the prompt."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Text] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingParam | None = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages``."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None


class MessageUsage(msgspec.Struct, gc=False):
    """Counts of tokens; those that were found in the cache are not among ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    """The answer. ``warnings`` lists what of the request is not enforced, or left out."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct, gc=False):
    """How many tokens a prompt has."""

    input_tokens: int
