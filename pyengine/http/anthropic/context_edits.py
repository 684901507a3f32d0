"""``context_management``: what is left out of a long conversation before the model reads it."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.http.anthropic.schema import ClearThinking, ClearToolUses

CLEARED = "[The result of this call was cleared.]"


def without_thinking(messages: Sequence[Message], edit: ClearThinking) -> tuple[list[Message], int]:
    """The messages without the thinking of all but the last turns, and how many lost theirs."""
    thought = [index for index, message in enumerate(messages) if message.reasoning_content]
    keep = len(thought) if edit.keep == "all" or edit.keep.type == "all" else edit.keep.value
    cleared = set(thought[: max(0, len(thought) - keep)])
    made = [
        replace(message, reasoning_content=None) if index in cleared else message
        for index, message in enumerate(messages)
    ]
    return made, len(cleared)


def without_results(messages: Sequence[Message], edit: ClearToolUses) -> tuple[list[Message], int]:
    """The messages without the results of all but the last calls, and how many lost theirs."""
    names = {call.id: call.called.name for message in messages for call in message.tool_calls or ()}
    results = [
        message.tool_call_id
        for message in messages
        if message.role == "tool"
        and names.get(message.tool_call_id or "") not in edit.exclude_tools
    ]
    cleared = {name for name in results[: max(0, len(results) - edit.keep.value)] if name}
    made = []
    for message in messages:
        if message.role == "tool" and message.tool_call_id in cleared:
            message = replace(message, content=CLEARED)
        elif edit.clear_tool_inputs and message.tool_calls:
            calls = [_without_input(call, cleared, edit) for call in message.tool_calls]
            message = replace(message, tool_calls=calls)
        made.append(message)
    return made, len(cleared)


def due(messages: Sequence[Message], edit: ClearToolUses, tokens: int) -> bool:
    """Whether a conversation of this length, in tokens, is long enough for the edit."""
    if edit.trigger.type == "tool_uses":
        return sum(message.role == "tool" for message in messages) > edit.trigger.value
    return tokens > edit.trigger.value


def applied(edit: ClearThinking | ClearToolUses, cleared: int, tokens: int) -> dict[str, Any]:
    """The edit as the answer tells of it; ``tokens`` is how much shorter the prompt is by it."""
    if isinstance(edit, ClearThinking):
        kind, counted = "clear_thinking_20251015", "cleared_thinking_turns"
    else:
        kind, counted = "clear_tool_uses_20250919", "cleared_tool_uses"
    return {"type": kind, counted: cleared, "cleared_input_tokens": tokens}


def _without_input(
    call: MessageToolCall, cleared: set[str], edit: ClearToolUses
) -> MessageToolCall:
    only = edit.clear_tool_inputs
    named = not isinstance(only, list) or call.called.name in only
    if call.id not in cleared or not named:
        return call
    return replace(call, function=FunctionCall(call.called.name, "{}"))
