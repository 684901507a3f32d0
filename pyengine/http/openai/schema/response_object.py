"""A response: OpenAI's object, and the items of its output."""

from collections.abc import Iterable
from typing import Any

import msgspec


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", kw_only=True):
    """Text of a message. ``logprobs`` has an entry a token, where they were asked for."""

    text: str
    annotations: list[Any] = []
    logprobs: list[dict[str, Any]] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Text of the reasoning."""

    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """Text of the assistant."""

    id: str
    role: str = "assistant"
    status: str
    content: list[OutputText] = []


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    """What the assistant thought before; ``encrypted_content`` is there where it was asked for."""

    id: str
    summary: list[Any] = []
    encrypted_content: str | msgspec.UnsetType | None = msgspec.UNSET
    status: str
    content: list[ReasoningText] = []


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    """A call of a function; ``arguments`` is JSON."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class OutputCustomCall(msgspec.Struct, tag_field="type", tag="custom_tool_call", kw_only=True):
    """A call of a custom tool; ``input`` is its text."""

    id: str
    call_id: str
    name: str
    input: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class OutputToolSearch(msgspec.Struct, tag_field="type", tag="tool_search_call", kw_only=True):
    """A search for tools, which the client does."""

    id: str
    call_id: str
    arguments: Any
    status: str
    execution: str = "client"


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall | OutputToolSearch


class InputTokensDetails(msgspec.Struct, gc=False):
    """How many input tokens came from the prefix cache, and how many were new to it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, gc=False):
    """How many output tokens are reasoning; see :class:`pyengine.completion.Usage`."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, gc=False):
    """``usage`` of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ConversationReference(msgspec.Struct, forbid_unknown_fields=True):
    """``conversation`` by its id: what comes before the input, and takes it and the answer."""

    id: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response. ``warnings`` lists the parts of the request that have no effect."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    completed_at: int | None = None
    conversation: ConversationReference | None = None
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None = None
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
        """Add to the warnings, each once; without any, the answer has no such field."""
        if texts := list(texts):
            self.warnings = list(dict.fromkeys([*(self.warnings or ()), *texts]))

    @property
    def output_text(self) -> str:
        """The text of its messages."""
        messages = (item for item in self.output if isinstance(item, OutputMessage))
        return "".join(part.text for message in messages for part in message.content)
