"""From Anthropic's messages and tools to those of the chat handler."""

import msgspec

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.chat.options import ChatOptions
from pyengine.chat.tools import Named, Tool, ToolChoice
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.anthropic.schema import (
    Choice,
    CountTokensRequest,
    FunctionTool,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)
from pyengine.http.limits import Limits

_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def conversation(request: CountTokensRequest) -> list[Message]:
    """The messages of a request, its system prompt first.

    Raises:
        InvalidRequestError: A block stands where it cannot; named.
    """
    made: list[Message] = []
    if request.system is not None:
        made.append(Message("system", _joined(request.system)))
    for index, turn in enumerate(request.messages):
        made += _messages(turn, f"messages[{index}]")
    return made


def _messages(turn: Turn, at: str) -> list[Message]:
    """A turn's messages: results of tools are messages of their own, before the user's text."""
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    results: list[Message] = []
    texts: list[Text] = []
    calls: list[MessageToolCall] = []
    thoughts: list[str] = []
    for number, block in enumerate(turn.content):
        of_answers = isinstance(block, Thinking | ToolUse)
        if of_answers != (turn.role == "assistant") and not isinstance(block, Text):
            where = f"{at}.content[{number}]"
            raise InvalidRequestError(
                f"'{where}' does not belong into a message of the {turn.role}.", param=where
            )
        if isinstance(block, Text):
            texts.append(block)
        elif isinstance(block, Thinking):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUse):
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(MessageToolCall(block.id, FunctionCall(block.name, arguments)))
        elif isinstance(block, ToolResult):
            text = _joined(block.content or "")
            results.append(Message("tool", text, tool_call_id=block.tool_use_id))
    if turn.role == "assistant":
        said = Message("assistant", _joined(texts) if texts or not calls else None)
        said.tool_calls = calls or None
        said.reasoning_content = "".join(thoughts) or None
        return [said]
    return results + ([Message(turn.role, _joined(texts))] if texts or not results else [])


def _joined(content: str | list[Text]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def chat_options(request: CountTokensRequest, reasons: bool, limits: Limits) -> ChatOptions:
    """The options of a request; ``reasons``: whether the model's format has reasoning.

    Raises:
        InvalidRequestError: A tool is malformed or not supported; named.
    """
    given = request.tools or []
    if len(given) > limits.tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.tools} tools, not {len(given)}.", param="tools"
        )
    choice = request.tool_choice
    reasoning = None
    if request.thinking is not None and reasons:
        reasoning = request.thinking.type != "disabled"
    return ChatOptions(
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)),
        tool_choice="auto" if choice is None else _choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning=reasoning,
        continue_final_message=bool(request.messages) and request.messages[-1].role == "assistant",
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


def _tool(tool: FunctionTool, at: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedParameterError(
            f"Tools of type '{tool.type[:100]}' are not supported ('{at}').", param=f"{at}.type"
        )
    fields = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
        "key_order": tool.key_order,
    }
    return Tool.from_function(fields, at)
