"""The items of a Responses request: read, made messages of, and written as they are stored."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall, text_of_parts
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.openai.schema.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputPart,
    MessageItem,
    ReasoningItem,
)

Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem

_ITEMS: Mapping[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_TEXTS = ("input_text", "output_text", "text", "reasoning_text")
# Before reasoning that this server has packed; its form is part of the name.
_PACKED = "pyengine-reasoning-1."


@dataclass(frozen=True)
class InputItem:
    """An item of the input.

    Attributes:
        at: Its place in the request; None of one that is stored.
        id: As the client gave it.
        value: The item.
    """

    at: str | None
    id: str | None
    value: Item


def read_items(
    given: str | Sequence[dict[str, Any]], fields: FieldPolicy, warnings: dict[str, None]
) -> list[InputItem]:
    """The items of an input.

    Args:
        given: The input.
        fields: What becomes of the items' fields.
        warnings: Takes what is told of them.

    Raises:
        InvalidRequestError: An item is malformed or not supported; named.
    """
    if isinstance(given, str):
        return [InputItem("input", None, MessageItem("user", given))]
    items = []
    for index, raw in enumerate(given):
        at, name = f"input[{index}]", raw.get("id")
        value = fields.convert(raw, _kind(raw, at), warnings, at)
        if isinstance(value, ReasoningItem) and not value.content and value.encrypted_content:
            if (text := unpacked(value.encrypted_content)) is not None:
                value.content = [InputPart("reasoning_text", text)]
            else:
                warnings["'input[].encrypted_content' is not this server's and is left out."] = None
        items.append(InputItem(at, name if isinstance(name, str) else None, value))
    return items


def stored_items(items: Sequence[dict[str, Any]], fields: FieldPolicy) -> list[InputItem]:
    """The items of a stored response, as :func:`stored` and the response's output have them."""
    found = []
    for raw in items:
        value = fields.convert(dict(raw), _ITEMS[raw["type"]], {}, "previous_response_id")
        found.append(InputItem(None, raw["id"], value))
    return found


def conversation(items: Sequence[InputItem], instructions: str | None) -> list[Message]:
    """The messages that instructions and items make.

    What the assistant thought, said and called in a row is one message of it. Reasoning without
    content of this server's is left out, and so is stored reasoning that nothing came after.

    Args:
        items: The items.
        instructions: The system message before them.

    Raises:
        InvalidRequestError: An item is malformed or not supported; named.
    """
    made: list[Message] = []
    if instructions is not None:
        made.append(Message("system", instructions))
    thought: tuple[str | None, str] | None = None
    for each in items:
        item, at = each.value, each.at or "previous_response_id"
        if isinstance(item, ReasoningItem):
            if item.content:
                thought = (each.at, _text(item.content, f"{at}.content"))
            continue
        if isinstance(item, FunctionCallOutputItem):
            text = _text(item.output, f"{at}.output")
            made.append(Message("tool", text, tool_call_id=item.call_id))
        elif isinstance(item, MessageItem):
            made.append(Message(item.role, _text(item.content, f"{at}.content")))
        else:
            if not made or made[-1].role != "assistant" or thought is not None:
                made.append(Message("assistant"))
            call = MessageToolCall(item.call_id, FunctionCall(item.name, item.arguments))
            made[-1].tool_calls = [*(made[-1].tool_calls or []), call]
        if thought is not None:
            if made[-1].role == "assistant":
                made[-1].reasoning_content = thought[1]
            elif thought[0] is not None:
                raise _lonely(thought[0])
            thought = None
    if thought is not None and thought[0] is not None:
        raise _lonely(thought[0])
    return made


def _kind(raw: dict[str, Any], at: str) -> type[Item]:
    kind = raw.get("type", "message")
    found = _ITEMS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise UnsupportedParameterError(
            f"Items of type {str(kind)[:100]!r} are not supported ('{at}').", param=f"{at}.type"
        )
    return found


def _text(content: str | list[InputPart], at: str) -> str:
    return content if isinstance(content, str) else text_of_parts(content, at, _TEXTS)


def _lonely(at: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{at}' is reasoning, but nothing of the assistant's follows it.", param=at
    )


def packed(reasoning: str) -> str:
    """Reasoning as one opaque string, for ``encrypted_content``.

    It is no secret, and stands beside the text itself: it lets clients send reasoning back that
    send nothing else of it, to this server or to another one.
    """
    return _PACKED + base64.b64encode(reasoning.encode()).decode()


def unpacked(given: str) -> str | None:
    """The reasoning in a string of :func:`packed`; None: it is none."""
    if not given.startswith(_PACKED):
        return None
    try:
        return base64.b64decode(given.removeprefix(_PACKED), validate=True).decode()
    except ValueError:
        return None


# The letters before the ids of items, by their types.
_PREFIXES = {
    MessageItem: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutputItem: "fco_",
    ReasoningItem: "rs_",
}


def stored(item: InputItem, new_id: str) -> dict[str, Any]:
    """An item as it is stored and listed: with an id, and its texts as parts."""
    value = item.value
    made: dict[str, Any] = {
        "id": item.id or _PREFIXES[type(value)] + new_id,
        "type": value.type,
        "status": "completed",
    }
    if isinstance(value, MessageItem):
        said = value.role == "assistant"
        return {**made, "role": value.role, "content": _parts(value.content, said=said)}
    if isinstance(value, FunctionCallItem):
        given = {"call_id": value.call_id, "name": value.name, "arguments": value.arguments}
        return {**made, **given}
    if isinstance(value, FunctionCallOutputItem):
        output = value.output
        if not isinstance(output, str):
            output = _text(output, "output")
        return {**made, "call_id": value.call_id, "output": output}
    content = [{"type": "reasoning_text", "text": part.text} for part in value.content or ()]
    return {**made, "summary": [], "content": content}


def _parts(content: str | list[InputPart], *, said: bool) -> list[dict[str, Any]]:
    """Texts as a message's content, one that the assistant ``said`` or another."""
    texts = [content] if isinstance(content, str) else [part.text for part in content]
    if said:
        rest: dict[str, Any] = {"annotations": [], "logprobs": []}
        return [{"type": "output_text", "text": text, **rest} for text in texts]
    return [{"type": "input_text", "text": text} for text in texts]


def without_oldest(messages: Sequence[Message]) -> list[list[Message]]:
    """The conversation without its first turn, its first two, and so on, down to its last one.

    A turn begins with a message of the user's. What stands before the first one stays.
    """
    turns = [index for index, message in enumerate(messages) if message.role == "user"]
    if not turns:
        return []
    head = list(messages[: turns[0]])
    return [head + list(messages[turn:]) for turn in turns[1:]]
