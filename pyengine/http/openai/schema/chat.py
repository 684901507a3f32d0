"""Chat completions: OpenAI's request and response."""

from typing import Any, Literal

import msgspec

from pyengine.chat.messages import ContentPart, Message
from pyengine.http.openai.schema.common import GenerationRequest, ReasoningParam, UsageObject
from pyengine.http.openai.schema.tools import (
    FunctionParam,
    NamedFunction,
    ToolChoiceParam,
    ToolParam,
)


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    """``prediction``: text that the answer will repeat in parts."""

    content: str | list[ContentPart]
    type: Literal["content"]


class ThinkingSwitch(msgspec.Struct, forbid_unknown_fields=True):
    """``thinking``: whether the model thinks first, and most tokens of that."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``.

    Attributes:
        messages: The conversation.
        tools: The tools that the model may call.
        tool_choice: Whether tools may or must be called, or which one.
        functions: Older form of tools: one call, so named in the answer.
        function_call: Older form of tool_choice.
        reasoning_effort: The effort, for a chat template that reads one; else it is left out with a
            warning.
        verbosity: How much is said, for a chat template that reads it; else it is left out with a
            warning.
        enable_thinking: Whether the model thinks first, where its template has a switch for that.
        thinking_token_budget: Most tokens of the reasoning, closed behind them; -1 is any number.
        chat_template: A template in the place of the model's own, where the server takes any:
            --trust-request-chat-template.
        include_reasoning: Whether the answer has the reasoning.
        store: Whether the answer is kept, for the other paths of this endpoint.
        metadata: The client's own notes: at most 16, kept with what is stored.
        logprobs: Whether the log-probability of every token of the text is told.
        top_logprobs: Likely tokens whose log-probabilities are told in the place of each, 0 to 20.
    """

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionParam] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningParam | None = None
    verbosity: str | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    thinking_token_budget: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    store: bool | None = None
    metadata: dict[str, str] | None = None

    logprobs: bool | None = None
    top_logprobs: int | None = None


class AnswerFunction(msgspec.Struct, gc=False):
    """The function of a call, and its arguments as JSON."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, tag_field="type", tag="function", gc=False):
    """A tool call of the answer."""

    id: str
    function: AnswerFunction


class AnswerCustom(msgspec.Struct, gc=False):
    """The custom tool of a call, and its text."""

    name: str
    input: str


class AnswerCustomCall(msgspec.Struct, tag_field="type", tag="custom", gc=False):
    """A call of a custom tool."""

    id: str
    custom: AnswerCustom


class AnswerMessage(msgspec.Struct, gc=False):
    """The assistant's answer. ``content`` is null where there are calls only."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerToolCall | AnswerCustomCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: AnswerFunction | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, gc=False):
    """A choice of a response."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(msgspec.Struct, gc=False, kw_only=True):
    """The whole answer. ``warnings`` lists the parts of the request that have no effect."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
