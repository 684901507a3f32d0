"""Messages: Anthropic's request and response, as far as a server of texts and tools has them."""

from typing import Any, Literal

import msgspec

from pyengine.grammar.algebra import KeyOrder


class Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A block of text."""

    text: str


class TextSource(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A plain text."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(msgspec.Struct, tag_field="type", tag="content", forbid_unknown_fields=True):
    """A text in blocks."""

    content: str | list[Text]


class Document(msgspec.Struct, tag_field="type", tag="document", forbid_unknown_fields=True):
    """A document of plain text, with what is said of it."""

    source: TextSource | ContentSource
    title: str | None = None
    context: str | None = None


class Thinking(msgspec.Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """What the assistant thought before an answer.

    Attributes:
        thinking: The text, or nothing where the signature has it.
        signature: The thinking, packed.
    """

    thinking: str
    signature: str | None = None


class RedactedThinking(
    msgspec.Struct, tag_field="type", tag="redacted_thinking", forbid_unknown_fields=True
):
    """What the assistant thought, unreadable to all but another server; it is left out."""

    data: str = ""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call of the assistant's."""

    id: str
    name: str
    input: dict[str, Any]


class ToolReference(
    msgspec.Struct, tag_field="type", tag="tool_reference", forbid_unknown_fields=True
):
    """A tool that a search has found. The model knows every tool anyway."""

    tool_name: str


class ToolResult(msgspec.Struct, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """What a tool gave. ``is_error`` says nothing that its text does not say."""

    tool_use_id: str
    content: str | list[Text | Document | ToolReference] | None = None


Block = Text | Document | Thinking | RedactedThinking | ToolUse | ToolResult


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the conversation. The answer goes on with a last one of the assistant's."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the client's; ``key_order`` as in OpenAI's chat completions here.

    Of the types that Anthropic's models know by heart (bash, text editor, memory) the schema is
    known here too.
    """

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
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON Schema of the answer's text."""

    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What the answer must look like, and the effort, for a template that reads one."""

    format: OutputFormat | None = None
    effort: str | None = None


class Amount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of tokens, of calls of tools, or of turns with thinking."""

    type: Literal["input_tokens", "tool_uses", "thinking_turns", "all"]
    value: int = 0


class ClearThinking(
    msgspec.Struct, tag_field="type", tag="clear_thinking_20251015", forbid_unknown_fields=True
):
    """Leaves the thinking of earlier turns out, all but that of the last ones."""

    keep: Literal["all"] | Amount = Amount("thinking_turns", 1)


class ClearToolUses(
    msgspec.Struct, tag_field="type", tag="clear_tool_uses_20250919", forbid_unknown_fields=True
):
    """Leaves the results of earlier tools out, once there are enough of them.

    Attributes:
        trigger: From what size on.
        clear_at_least: The fewest tokens that clearing must save.
        exclude_tools: Tools whose results are kept.
        clear_tool_inputs: Whether the arguments of calls are cleared too.
    """

    trigger: Amount = Amount("input_tokens", 100_000)
    keep: Amount = Amount("tool_uses", 3)
    clear_at_least: Amount | None = None
    exclude_tools: list[str] = []
    clear_tool_inputs: bool | list[str] | None = None


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out of a long conversation."""

    edits: list[ClearThinking | ClearToolUses] = []


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """``user_id`` is the tenant, as ``user`` is in OpenAI's requests."""

    user_id: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages/count_tokens``: the fields that make the prompt."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Text] | None = None
    # Read by their types: as FunctionTool, or left out.
    tools: list[dict[str, Any]] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/messages``."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None


class MessageUsage(msgspec.Struct, gc=False):
    """Counts of tokens; those that were found in the cache are not among ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    """The answer. ``warnings`` lists the parts of the request that have no effect."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct, gc=False):
    """How many tokens a prompt has."""

    input_tokens: int
    context_management: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
