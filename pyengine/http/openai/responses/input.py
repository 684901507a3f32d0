"""The items of a Responses request: read, made messages of, and written as they are stored."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import msgspec

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall, text_of_parts
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.openai.custom_tools import arguments_of
from pyengine.http.openai.responses.tools import SEARCH, full_name
from pyengine.http.openai.schema.responses import (
    AdditionalToolsItem,
    CompactionItem,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputPart,
    LocalShellCallItem,
    LocalShellCallOutputItem,
    MessageItem,
    ReasoningItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from pyengine.http.packed_reasoning import unpacked

Item = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomCallItem
    | CustomCallOutputItem
    | LocalShellCallItem
    | LocalShellCallOutputItem
    | ToolSearchCallItem
    | ToolSearchOutputItem
    | AdditionalToolsItem
    | CompactionItem
    | ReasoningItem
)

_KINDS: tuple[type[Item], ...] = get_args(Item)
_ITEMS: Mapping[str, type[Item]] = {
    cast("str", kind.__struct_defaults__[-1]): kind for kind in _KINDS
}
# Calls that other servers have run, and their like: the model is told what came of them by the
# messages that follow.
_LEFT_OUT = re.compile(
    r"(web_search|file_search|image_generation|code_interpreter|computer|mcp|mcp_approval_request|"
    r"mcp_approval_response|mcp_list_tools|shell|apply_patch|program)(_call)?(_output)?"
)
_TEXTS = ("input_text", "output_text", "text", "reasoning_text")
REFERENCE = "item_reference"


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
        given: The input; references to items are replaced by those.
        fields: What becomes of the items' fields.
        warnings: Takes what is told of them.

    Raises:
        InvalidRequestError: An item is malformed or not supported; named.
    """
    if isinstance(given, str):
        return [InputItem("input", None, MessageItem("user", given))]
    items = []
    for index, raw in enumerate(given):
        at, name, kind = f"input[{index}]", raw.get("id"), raw.get("type", "message")
        if isinstance(kind, str) and _LEFT_OUT.fullmatch(kind):
            warnings[f"'input': items of type '{kind}' are left out: another server's."] = None
            continue
        value = fields.convert(dict(raw), _kind(kind, at), warnings, at)
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


def tools_of(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The tools that items bring."""
    return [
        tool
        for each in items
        if isinstance(each.value, ToolSearchOutputItem | AdditionalToolsItem)
        for tool in each.value.tools
    ]


def conversation(items: Sequence[InputItem], instructions: str | None) -> list[Message]:
    """The messages that instructions and items make.

    What the assistant thought, said and called in a row is one message of it. Reasoning without
    content of this server's is left out; reasoning that nothing of the assistant's came after is a
    message of itself.

    Raises:
        InvalidRequestError: An item is malformed or not supported; named.
    """
    made: list[Message] = []
    if instructions is not None:
        made.append(Message("system", instructions))
    thought: str | None = None
    for each in items:
        item, at = each.value, each.at or "previous_response_id"
        if isinstance(item, AdditionalToolsItem):
            continue
        if isinstance(item, ReasoningItem):
            if item.content:
                made += _thought(thought)
                thought = _text(item.content, f"{at}.content")
            continue
        call = _call(item)
        if call is not None:
            if not made or made[-1].role != "assistant" or thought is not None:
                made.append(Message("assistant"))
            made[-1].tool_calls = [*(made[-1].tool_calls or []), call]
        elif isinstance(item, CompactionItem):
            made.append(Message("assistant", _summary(item, at)))
        elif isinstance(item, MessageItem):
            if item.role != "assistant":
                made, thought = made + _thought(thought), None
            made.append(Message(item.role, _text(item.content, f"{at}.content")))
        else:
            made, thought = made + _thought(thought), None
            made.append(_output(item, at))
        if thought is not None:
            made[-1].reasoning_content, thought = thought, None
    return made + _thought(thought)


def _thought(text: str | None) -> list[Message]:
    """What the assistant thought where nothing of it came after: an answer that was cut short."""
    return [] if text is None else [Message("assistant", "", reasoning_content=text)]


def _summary(item: CompactionItem, at: str) -> str:
    text = unpacked(item.encrypted_content)
    if text is None:
        raise InvalidRequestError(
            f"'{at}.encrypted_content' was not made by this server.",
            param=f"{at}.encrypted_content",
        )
    return f"Summary of the conversation so far:\n{text}"


def _call(item: Item) -> MessageToolCall | None:
    """The call that an item is, as the model knows it."""
    if isinstance(item, FunctionCallItem):
        function = FunctionCall(full_name(item.name, item.namespace), item.arguments)
        return MessageToolCall(item.call_id, function)
    if isinstance(item, CustomCallItem):
        name = full_name(item.name, item.namespace)
        return MessageToolCall(item.call_id, FunctionCall(name, arguments_of(item.input)))
    if isinstance(item, LocalShellCallItem):
        arguments = msgspec.json.encode(item.action).decode()
        return MessageToolCall(item.call_id, FunctionCall("local_shell", arguments))
    if isinstance(item, ToolSearchCallItem):
        arguments = msgspec.json.encode(item.arguments).decode()
        return MessageToolCall(item.call_id or SEARCH, FunctionCall(SEARCH, arguments))
    return None


def _output(item: Item, at: str) -> Message:
    """The result of a call."""
    if isinstance(item, FunctionCallOutputItem | CustomCallOutputItem):
        return Message("tool", _text(item.output, f"{at}.output"), tool_call_id=item.call_id)
    if isinstance(item, LocalShellCallOutputItem):
        return Message("tool", item.output, tool_call_id=item.id)
    assert isinstance(item, ToolSearchOutputItem)
    names = [str(tool.get("name")) for tool in item.tools]
    text = f"Found: {', '.join(names)}." if names else "Nothing was found."
    return Message("tool", text, tool_call_id=item.call_id or SEARCH)


def _kind(kind: Any, at: str) -> type[Item]:
    found = _ITEMS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise UnsupportedParameterError(
            f"Items of type {str(kind)[:100]!r} are not supported ('{at}').", param=f"{at}.type"
        )
    return found


def _text(content: str | list[InputPart], at: str) -> str:
    return content if isinstance(content, str) else text_of_parts(content, at, _TEXTS)


# The letters before the ids of items, by their types.
_PREFIXES: Mapping[type[Item], str] = {
    MessageItem: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutputItem: "fco_",
    CustomCallItem: "ctc_",
    CustomCallOutputItem: "ctco_",
    LocalShellCallItem: "lsh_",
    LocalShellCallOutputItem: "lsho_",
    ToolSearchCallItem: "tsc_",
    ToolSearchOutputItem: "tso_",
    AdditionalToolsItem: "at_",
    CompactionItem: "cmp_",
    ReasoningItem: "rs_",
}


def stored(
    items: Sequence[InputItem], new_id: Callable[[str], str], taken: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Items as they are stored and listed; ids that two have, or that are taken, are made anew."""
    seen, made = set(taken), []
    for item in items:
        if item.id in seen:
            item = replace(item, id=None)
        made.append(_stored(item, new_id("")))
        seen.add(made[-1]["id"])
    return made


def _stored(item: InputItem, new_id: str) -> dict[str, Any]:
    """An item with an id, and its texts as parts."""
    value = item.value
    made: dict[str, Any] = {
        "id": item.id or _PREFIXES[type(value)] + new_id,
        "type": value.type,
        "status": "completed",
    }
    if isinstance(value, MessageItem):
        said = value.role == "assistant"
        return {**made, "role": value.role, "content": _parts(value.content, said=said)}
    if isinstance(value, ReasoningItem):
        content = [{"type": "reasoning_text", "text": part.text} for part in value.content or ()]
        return {**made, "summary": [], "content": content}
    given = msgspec.to_builtins(value)
    if isinstance(value, FunctionCallOutputItem | CustomCallOutputItem):
        given["output"] = _text(value.output, "output")
    return {**made, **{key: each for key, each in given.items() if each is not None}, **made}


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
