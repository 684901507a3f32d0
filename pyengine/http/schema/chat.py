"""Chat completions: OpenAI's request and response."""

from typing import Any, Literal

import msgspec

from pyengine.http.schema.common import GenerationRequest, UsageObject


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message's content; only text is supported, the others are refused by name."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None
    prompt_cache_breakpoint: Any = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """The function that an assistant called, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call in an earlier answer of the assistant."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a conversation.

    refusal, annotations, audio, function_call and reasoning_content may come as null or empty, as
    the assistant's messages do when a client sends them back; anything else is refused by name.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    reasoning_content: Any = None


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``.

    Fields that need no action of pyengine, by what OpenAI says they are for: safety_identifier
    (whom OpenAI's abuse detection should watch), prompt_cache_key (which of OpenAI's machines
    should get the request: here one engine serves all, and prefixes are cached by content),
    service_tier auto and default (there is one tier), parallel_tool_calls (there are no tools).
    """

    messages: list[Message]
    max_completion_tokens: int | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None

    # Refused unless neutral: see UNSUPPORTED_IN_CHAT.
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    service_tier: Any = None
    store: bool | None = None
    metadata: Any = None
    moderation: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None


# As UNSUPPORTED: field -> values that ask for nothing.
UNSUPPORTED_IN_CHAT: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    # OpenAI takes metadata only together with store.
    "metadata": ({},),
    "moderation": (),
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": (),
}

# Keys of a message that are refused unless null or empty.
UNSUPPORTED_IN_MESSAGE = ("refusal", "annotations", "audio", "function_call", "reasoning_content")


class AnswerMessage(msgspec.Struct, gc=False):
    """The assistant's answer."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, gc=False):
    """The one choice of a response."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: None = None


class ChatResponse(msgspec.Struct, gc=False, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
