"""The Responses API: OpenAI's requests and responses."""

from typing import Any, Literal

import msgspec

from pyengine.grammar.algebra import KeyOrder
from pyengine.http.openai.schema.common import ReasoningParam
from pyengine.http.openai.schema.response_object import ConversationReference
from pyengine.http.openai.schema.structured import JsonObjectFormat, StructuredFields, TextFormat
from pyengine.http.openai.schema.tools import AnyText, TextGrammar


class TextJsonSchema(
    msgspec.Struct,
    tag_field="type",
    tag="json_schema",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """``text.format`` of type json_schema; strict as in chat completions."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class TextParam(msgspec.Struct, forbid_unknown_fields=True):
    """``text``: what the answer must look like; its verbosity, for a template that reads one."""

    format: TextFormat | JsonObjectFormat | TextJsonSchema | None = None
    verbosity: str | None = None


class FunctionToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A function; ``output_schema`` is what it returns. ``key_order`` as in chat completions."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    key_order: KeyOrder | None = None
    output_schema: dict[str, Any] | None = None
    type: Literal["function"] = "function"


class GrammarFormat(TextGrammar, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    """A text of a grammar."""


class CustomToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the model calls with a text."""

    name: str
    description: str | None = None
    format: AnyText | GrammarFormat | None = None
    type: Literal["custom"] = "custom"


class NamespaceParam(msgspec.Struct, forbid_unknown_fields=True):
    """Functions and custom tools under a name, which their calls repeat."""

    name: str
    tools: list[dict[str, Any]]
    description: str | None = None
    type: Literal["namespace"] = "namespace"


class ToolSearchParam(msgspec.Struct, forbid_unknown_fields=True):
    """A search for tools that the client does. One of the server's finds what is known anyway."""

    execution: Literal["server", "client"] = "server"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    type: Literal["tool_search"] = "tool_search"


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool by its name."""

    type: str
    name: str | None = None


class ToolChoiceObject(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``tool_choice``: which tools may or must be called: one by its name, or those allowed."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options``: whether deltas are padded, so that their sizes tell nothing."""

    include_obfuscation: bool | None = None


class ResponsesRequest(StructuredFields, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``.

    Attributes:
        instructions: What the model is told before the input; not carried over to later responses.
        previous_response_id: A stored response that the conversation goes on from.
        conversation: The conversation that the input and the answer are added to, by its id.
        max_tool_calls: Bounds calls that the server runs; it runs none.
        truncation: auto leaves the oldest turns out where the context is too short.
        include: What the response has besides: log-probabilities, or the reasoning as one opaque
            text, which later requests may send back.
        store: Whether the response is kept for later requests; it is unless false.
        background: Answer at once, and go on in the background; needs the response to be stored.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    text: TextParam | None = None
    # Read by their types: functions, custom tools, namespaces, searches for tools.
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: ReasoningParam | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class InputTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses/input_tokens``: the fields of a response that make its prompt."""

    model: str | None = None
    input: str | list[dict[str, Any]] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    text: TextParam | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: ReasoningParam | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class InputTokens(msgspec.Struct):
    """How many tokens the prompt of a response has."""

    input_tokens: int
    object: str = "response.input_tokens"


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input item: its text."""

    type: str
    text: str | None = None


class MessageItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    type: Literal["message"] = "message"


class FunctionCallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A call of the assistant's."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    type: Literal["function_call"] = "function_call"


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    call_id: str
    output: str | list[InputPart]


class FunctionCallOutputItem(_Output, forbid_unknown_fields=True):
    """The output of a tool call."""

    type: Literal["function_call_output"] = "function_call_output"


class CustomCallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    type: Literal["custom_tool_call"] = "custom_tool_call"


class CustomCallOutputItem(_Output, forbid_unknown_fields=True):
    """The output of a custom tool."""

    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"


class LocalShellCallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A command that the client ran."""

    call_id: str
    action: dict[str, Any]
    type: Literal["local_shell_call"] = "local_shell_call"


class LocalShellCallOutputItem(msgspec.Struct, forbid_unknown_fields=True):
    """What such a command printed; ``id`` is the call's."""

    id: str
    output: str
    type: Literal["local_shell_call_output"] = "local_shell_call_output"


class ToolSearchCallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A search for tools."""

    arguments: Any
    call_id: str | None = None
    execution: Literal["server", "client"] = "server"
    type: Literal["tool_search_call"] = "tool_search_call"


class ToolSearchOutputItem(msgspec.Struct, forbid_unknown_fields=True):
    """The tools that a search has found; the model knows them from now on."""

    tools: list[dict[str, Any]]
    call_id: str | None = None
    execution: Literal["server", "client"] = "server"
    type: Literal["tool_search_output"] = "tool_search_output"


class AdditionalToolsItem(msgspec.Struct, forbid_unknown_fields=True):
    """Tools that came later in a conversation."""

    tools: list[dict[str, Any]]
    role: Literal["developer"] = "developer"
    type: Literal["additional_tools"] = "additional_tools"


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True):
    """The assistant's reasoning before the item that follows: its text, or as it was given."""

    content: list[InputPart] | None = None
    encrypted_content: str | None = None
    type: Literal["reasoning"] = "reasoning"


class CompactionItem(msgspec.Struct, forbid_unknown_fields=True):
    """What a conversation was compacted to, as this server gave it."""

    encrypted_content: str
    type: Literal["compaction"] = "compaction"
