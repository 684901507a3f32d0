"""The Responses API: OpenAI's request and response, as far as a server without a store has them."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from pyengine.http.openai.schema.structured import JsonObjectFormat, TextFormat


class TextJsonSchema(
    msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """``text.format`` of type json_schema; strict as in chat completions."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class TextParam(msgspec.Struct, forbid_unknown_fields=True):
    """``text``: what the answer must look like."""

    format: TextFormat | JsonObjectFormat | TextJsonSchema | None = None
    verbosity: Any = None


class FunctionToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of ``tools``; only functions are supported, others are refused by name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    # Refused by name unless null or false.
    output_schema: Any = None
    defer_loading: Any = None
    allowed_callers: Any = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool by its name."""

    type: str
    name: str | None = None


class ToolChoiceObject(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` as an object: a named function, or those that are allowed."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


class ReasoningParam(msgspec.Struct, forbid_unknown_fields=True):
    """``reasoning``: the effort, for a template that reads one; the others are refused by name."""

    effort: str | None = None
    mode: Any = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``, without a store: the whole conversation is in ``input``.

    Without action, as in chat completions: safety_identifier, prompt_cache_key, service_tier auto
    and default. ``user`` is the tenant that the request is charged to. ``store``, which OpenAI's
    API and routers take as true where it is not given, brings a warning: nothing is stored.
    Beyond OpenAI's are, as in chat completions, top_k, min_p, repetition_penalty, priority and
    cache_salt.
    """

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    text: TextParam | None = None
    tools: list[FunctionToolParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: ReasoningParam | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    # Refused unless neutral: see UNSUPPORTED_IN_RESPONSES.
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    context_management: Any = None
    max_tool_calls: Any = None
    metadata: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    truncation: Any = None


# Field -> values that ask for nothing; null always does. Anything else is refused by name.
UNSUPPORTED_IN_RESPONSES: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "context_management": (),
    "max_tool_calls": (),
    "metadata": ({},),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input item: its text; anything else is refused by name."""

    type: str
    text: str | None = None
    # Part of an answer that a client sends back; the model does not see it.
    logprobs: list[Any] | None = None
    parsed: Any = None  # what OpenAI's client has read out of the text
    # Refused unless null or empty, like all content but text.
    annotations: Any = None
    refusal: Any = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None
    prompt_cache_breakpoint: Any = None


class MessageItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message. id, status and phase are an answer's own, and say nothing to the model."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A call of the assistant's.

    ``parsed_arguments`` is what OpenAI's client has read out of the arguments; ``async`` it dumps
    under the name of its Python attribute too.
    """

    call_id: str
    name: str
    arguments: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None
    asynchronous: Any = msgspec.field(default=None, name="async")
    async_: Any = None
    caller: Any = None
    namespace: Any = None


class FunctionCallOutputItem(msgspec.Struct, forbid_unknown_fields=True):
    """The output of a tool call."""

    call_id: str
    output: str | list[InputPart]
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: str | None = None
    name: str | None = None
    caller: Any = None
    namespace: Any = None


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True):
    """The assistant's reasoning before the item that follows."""

    content: list[InputPart] | None = None
    summary: list[Any] | None = None
    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    status: str | None = None
    encrypted_content: Any = None


class InputTokensDetails(msgspec.Struct, gc=False):
    """How many input tokens came from the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, gc=False):
    """How many output tokens are reasoning, where they can be counted."""

    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET


class ResponseUsage(msgspec.Struct, gc=False):
    """``usage`` of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response. ``warnings`` lists what of the request is not enforced, or left out."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    completed_at: int | None = None
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[dict[str, Any]] = []
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] = {}
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET

    def warn(self, texts: Iterable[str]) -> None:
        """Add to the warnings; without any, the answer has no such field."""
        if texts := list(texts):
            self.warnings = [*(self.warnings or ()), *texts]
