"""Chat completions: OpenAI's request and response."""

from typing import Any, Literal

import msgspec

from pyengine.chat.messages import ContentPart, Message
from pyengine.http.openai.schema.common import GenerationRequest, UsageObject
from pyengine.http.openai.schema.tools import ToolChoiceParam, ToolParam


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    """``prediction``: text that the answer will repeat in parts."""

    content: str | list[ContentPart]
    type: Literal["content"]


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``.

    Beyond OpenAI's: chat_template (in the place of the model's own, where the server was started
    with --trust-request-chat-template), chat_template_kwargs (further variables for the template;
    one that it does not read is left out with a warning, and so is an unread reasoning_effort) and
    include_reasoning
    (false leaves the reasoning out of the answer). With continue_final_message the answer goes on
    with the text of the last message; add_generation_prompt false lets the model begin the turn.
    With store the completion is kept, with metadata, for the other paths of this endpoint.
    """

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
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


class AnswerToolCall(msgspec.Struct, gc=False):
    """A tool call of the answer."""

    id: str
    function: AnswerFunction
    type: str = "function"


class AnswerMessage(msgspec.Struct, gc=False):
    """The assistant's answer. ``content`` is null where there are calls only."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, gc=False):
    """A choice of a response."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(msgspec.Struct, gc=False, kw_only=True):
    """The whole answer. ``warnings`` lists what of the request is not enforced, or left out."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
