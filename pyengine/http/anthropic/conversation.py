"""From Anthropic's messages and tools to those of the chat handler."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.chat.options import ChatOptions
from pyengine.chat.tools import Named, Tool, ToolChoice
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar, json_schema
from pyengine.http.anthropic.client_tools import client_tool
from pyengine.http.anthropic.schema import (
    Choice,
    CountTokensRequest,
    Document,
    FunctionTool,
    RedactedThinking,
    Text,
    TextSource,
    Thinking,
    ToolReference,
    ToolResult,
    ToolUse,
    Turn,
)
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.hosted_tools import is_hosted, left_out
from pyengine.http.limits import Limits, check_tools
from pyengine.http.openai.completions.chat_options import template_arguments
from pyengine.http.packed_reasoning import unpacked

_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
Warnings = dict[str, None]


def conversation(request: CountTokensRequest, warnings: Warnings) -> list[Message]:
    """The messages of a request, its system prompt first; ``warnings`` takes what is left out.

    Raises:
        InvalidRequestError: A block stands where it cannot; named.
    """
    made: list[Message] = []
    if request.system is not None:
        made.append(Message("system", _joined(request.system, warnings)))
    for index, turn in enumerate(request.messages):
        made += _messages(turn, f"messages[{index}]", warnings)
    return made


def _messages(turn: Turn, at: str, warnings: Warnings) -> list[Message]:
    """A turn's messages: results of tools are messages of their own, before the user's text."""
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    results: list[Message] = []
    texts: list[Text | Document] = []
    calls: list[MessageToolCall] = []
    thoughts: list[str] = []
    for number, block in enumerate(turn.content):
        of_answers = isinstance(block, Thinking | RedactedThinking | ToolUse)
        if of_answers != (turn.role == "assistant") and not isinstance(block, Text):
            where = f"{at}.content[{number}]"
            raise InvalidRequestError(
                f"'{where}' does not belong into a message of the {turn.role}.", param=where
            )
        if isinstance(block, Text | Document):
            texts.append(block)
        elif isinstance(block, Thinking):
            thoughts.append(block.thinking or unpacked(block.signature or "") or "")
        elif isinstance(block, RedactedThinking):
            warnings["'redacted_thinking' is left out: only its own server can read it."] = None
        elif isinstance(block, ToolUse):
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(MessageToolCall(block.id, FunctionCall(block.name, arguments)))
        elif isinstance(block, ToolResult):
            text = _joined(block.content or "", warnings)
            results.append(Message("tool", text, tool_call_id=block.tool_use_id))
    if turn.role == "assistant":
        said = Message("assistant", _joined(texts, warnings) if texts or not calls else None)
        said.tool_calls = calls or None
        said.reasoning_content = "".join(thoughts) or None
        return [said]
    if not texts and results:
        return results
    return [*results, Message(turn.role, _joined(texts, warnings))]


def _joined(content: str | Sequence[Text | Document | ToolReference], warnings: Warnings) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(block, ToolReference) for block in content):
        warnings["'tool_reference' is left out: the model knows every tool anyway."] = None
    return "\n".join(
        block.text if isinstance(block, Text) else _text_of(block)
        for block in content
        if not isinstance(block, ToolReference)
    )


def _text_of(document: Document) -> str:
    """A document with what is said of it before."""
    source = document.source
    text = source.data if isinstance(source, TextSource) else _joined(source.content, {})
    return "\n".join(filter(None, (document.title, document.context, text)))


def answer_format(request: CountTokensRequest) -> tuple[str, Grammar] | None:
    """The field that says what the answer must look like, and the grammar of that.

    Raises:
        InvalidRequestError: Two fields say so.
    """
    config, old = request.output_config, request.output_format
    if config is None or config.format is None:
        return None if old is None else ("output_format", json_schema(old.schema))
    if old is not None:
        raise InvalidRequestError(
            "'output_format' is the older name of 'output_config.format'; give one.",
            param="output_format",
        )
    return "output_config.format", json_schema(config.format.schema)


def chat_options(
    request: CountTokensRequest,
    thinking: tuple[bool | None, int | None],
    limits: Limits,
    fields: FieldPolicy,
    warnings: Warnings,
) -> ChatOptions:
    """The options of a request; ``thinking``: whether the model thinks first, and its budget.

    Raises:
        InvalidRequestError: A tool is malformed or not supported; named.
    """
    given = request.tools or []
    check_tools(len(given), limits)
    choice, wanted = request.tool_choice, answer_format(request)
    effort = None if request.output_config is None else request.output_config.effort
    tools = [_tool(raw, f"tools[{i}]", fields, warnings) for i, raw in enumerate(given)]
    return ChatOptions(
        tools=tuple(tool for tool in tools if tool is not None),
        tool_choice="auto" if choice is None else _choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        grammar=None if wanted is None else wanted[1],
        reasoning=thinking[0],
        thinking_budget=thinking[1],
        continue_final_message=bool(request.messages) and request.messages[-1].role == "assistant",
        template_arguments=template_arguments(
            request.chat_template_kwargs, reasoning_effort=("output_config.effort", effort)
        ),
        parameters_at="input_schema",
    )


def _choice(choice: Choice) -> ToolChoice:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequestError(
            "Missing required parameter: 'tool_choice.name'.",
            param="tool_choice.name",
            code="missing_required_parameter",
        )
    return Named(choice.name)


def _tool(raw: dict[str, Any], at: str, fields: FieldPolicy, warnings: Warnings) -> Tool | None:
    """The tool of an entry; None where it is left out."""
    kind = raw.get("type")
    if is_hosted(kind):
        warnings[left_out(str(kind))] = None
        return None
    tool = fields.convert(raw, FunctionTool, warnings, at)
    if tool.type not in (None, "custom"):
        if (known := client_tool(tool.type, tool.name)) is not None:
            return known
        raise UnsupportedParameterError(
            f"Tools of type '{tool.type[:100]}' are not supported ('{at}').", param=f"{at}.type"
        )
    given = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
        "key_order": tool.key_order,
    }
    return Tool.from_function(given, at)
