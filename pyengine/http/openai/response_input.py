"""From the items of a Responses request to the messages of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.openai.schema.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputPart,
    MessageItem,
    ReasoningItem,
)

_ITEMS: Mapping[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_TEXTS = ("input_text", "output_text", "text", "reasoning_text")


def conversation(
    given: str | Sequence[dict[str, Any]],
    instructions: str | None,
    fields: FieldPolicy,
    warnings: dict[str, None],
) -> list[Message]:
    """The messages that instructions and items make.

    What the assistant thought, said and called in a row is one message of it. Reasoning without
    content of this server's is left out.

    Args:
        given: The input.
        instructions: The system message before it.
        fields: What becomes of the items' fields.
        warnings: Takes what is told of them.

    Raises:
        InvalidRequestError: An item is malformed or not supported; named.
    """
    made: list[Message] = []
    if instructions is not None:
        made.append(Message("system", instructions))
    if isinstance(given, str):
        return [*made, Message("user", given)]
    thought: tuple[int, str] | None = None
    for index, raw in enumerate(given):
        at = f"input[{index}]"
        item = fields.convert(raw, _kind(raw, at), warnings, at)
        if isinstance(item, ReasoningItem):
            if item.content:
                thought = (index, _text(item.content, f"{at}.content"))
            continue
        if isinstance(item, FunctionCallOutputItem):
            text = _text(item.output, f"{at}.output")
            made.append(Message("tool", text, tool_call_id=item.call_id))
        elif isinstance(item, MessageItem):
            made.append(Message(item.role, _text(item.content, f"{at}.content")))
        elif isinstance(item, FunctionCallItem):
            if not made or made[-1].role != "assistant" or thought is not None:
                made.append(Message("assistant"))
            call = MessageToolCall(item.call_id, FunctionCall(item.name, item.arguments))
            made[-1].tool_calls = [*(made[-1].tool_calls or []), call]
        if thought is not None:
            if made[-1].role != "assistant":
                raise _lonely(thought[0])
            made[-1].reasoning_content, thought = thought[1], None
    if thought is not None:
        raise _lonely(thought[0])
    return made


def _kind(raw: dict[str, Any], at: str) -> type[msgspec.Struct]:
    kind = raw.get("type", "message")
    found = _ITEMS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise UnsupportedParameterError(
            f"Items of type {str(kind)[:100]!r} are not supported ('{at}').", param=f"{at}.type"
        )
    return found


def _text(content: str | list[InputPart], at: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{at}[{number}]") for number, part in enumerate(content))


def _part(part: InputPart, at: str) -> str:
    if part.type not in _TEXTS:
        raise UnsupportedParameterError(
            f"Content of type '{part.type[:100]}' is not supported ('{at}').", param=f"{at}.type"
        )
    if part.text is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.text'.",
            param=f"{at}.text",
            code="missing_required_parameter",
        )
    return part.text


def _lonely(index: int) -> InvalidRequestError:
    at = f"input[{index}]"
    return InvalidRequestError(
        f"'{at}' is reasoning, but nothing of the assistant's follows it.", param=at
    )
