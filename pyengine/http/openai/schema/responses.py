"""The Responses API: OpenAI's requests and responses."""

from typing import Any, Literal

import msgspec

from pyengine.grammar.algebra import KeyOrder
from pyengine.http.openai.schema.sampling import SamplingFields
from pyengine.http.openai.schema.structured import JsonObjectFormat, TextFormat


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
    """``text``: what the answer must look like."""

    format: TextFormat | JsonObjectFormat | TextJsonSchema | None = None


class FunctionToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of ``tools``; only functions are supported, others are refused by name.

    ``key_order`` as in chat completions.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    key_order: KeyOrder | None = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool by its name."""

    type: str
    name: str | None = None


class ToolChoiceObject(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``tool_choice`` as an object: a named function, or those that are allowed."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


class ReasoningParam(msgspec.Struct, forbid_unknown_fields=True):
    """``reasoning``: the effort, for a template that reads one."""

    effort: str | None = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options``: the table of fields says what they may have."""


class ResponsesRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``.

    The response is stored unless ``store`` is false, as in OpenAI's API. ``previous_response_id``
    puts a stored response's input and output before ``input``; instructions are not carried over.
    A ``background`` response is answered at once, and read or cancelled by its id. With
    ``truncation`` of auto, the conversation's oldest turns are left out where it would exceed the
    context. ``include`` of reasoning.encrypted_content gives the reasoning as one opaque string
    too, which later requests may send back. Beyond OpenAI's are the sampling parameters of
    completions.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    text: TextParam | None = None
    tools: list[FunctionToolParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
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
    text: TextParam | None = None
    tools: list[FunctionToolParam] | None = None
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
    type: Literal["function_call"] = "function_call"


class FunctionCallOutputItem(msgspec.Struct, forbid_unknown_fields=True):
    """The output of a tool call."""

    call_id: str
    output: str | list[InputPart]
    type: Literal["function_call_output"] = "function_call_output"


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True):
    """The assistant's reasoning before the item that follows: its text, or as it was given."""

    content: list[InputPart] | None = None
    encrypted_content: str | None = None
    type: Literal["reasoning"] = "reasoning"
