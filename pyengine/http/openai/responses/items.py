"""The items of a response's output, as they are written: reasoning, messages, calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyengine.chat.answer import ToolCall, read_arguments
from pyengine.http.openai.custom_tools import InputText
from pyengine.http.openai.schema.response_object import (
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputToolSearch,
    ReasoningText,
)
from pyengine.http.openai.tools import ServedTool
from pyengine.http.packed_reasoning import packed

NewId = Callable[[str], str]
Logprobs = list[dict[str, Any]]


@dataclass(frozen=True)
class Writing:
    """How a response is written.

    Attributes:
        new_id: Makes the ids of items.
        pack: Whether reasoning stands in ``encrypted_content`` too.
        served: The tools, by the names that the model knows.
        pads: Whether deltas are padded.
    """

    new_id: NewId
    pack: bool = False
    served: Mapping[str, ServedTool] = field(default_factory=dict)
    pads: bool = False

    def opened(self, call_id: str, name: str) -> "OpenItem":
        """The item of a call that begins, by the model's name of its tool."""
        tool = self.served[name]
        prefix, kind = _CALLS[tool.kind]
        text = InputText() if tool.kind == "custom" else None
        return OpenItem(kind, self.new_id(prefix), call_id, tool.name, tool.namespace, text)

    def call(self, call: ToolCall, status: str) -> OutputItem:
        """The item of a whole call."""
        opened = self.opened(call.id, call.name)
        opened.add(call.arguments)
        return opened.item(status, self)

    def reasoning(self, item_id: str, text: str, status: str) -> OutputReasoning:
        """An item of reasoning."""
        begun = status == "in_progress"
        made = OutputReasoning(
            id=item_id, status=status, content=[] if begun else [ReasoningText(text)]
        )
        if self.pack:
            made.encrypted_content = None if begun else packed(text)
        return made


def message(item_id: str, text: str, logprobs: Logprobs, status: str) -> OutputMessage:
    """An item of text."""
    begun = status == "in_progress"
    content = [] if begun else [OutputText(text=text, logprobs=logprobs)]
    return OutputMessage(id=item_id, status=status, content=content)


@dataclass
class OpenItem:
    """The item that is being written; ``kind`` is its type.

    Attributes:
        custom: Reads the text of a custom tool's call out of its arguments.
    """

    kind: str
    id: str
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    custom: InputText | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)

    def add(self, text: str) -> str:
        """Take more of it; returns what is to be told of that."""
        if self.custom is not None:
            text = self.custom.feed(text)
        self.pieces.append(text)
        return text

    def item(self, status: str, writing: Writing) -> OutputItem:
        """The item as far as it has come."""
        text = "".join(self.pieces)
        if self.kind == "reasoning":
            return writing.reasoning(self.id, text, status)
        if self.kind == "message":
            return message(self.id, text, self.logprobs, status)
        if self.kind == "tool_search_call":
            return OutputToolSearch(
                id=self.id, call_id=self.call_id, arguments=read_arguments(text), status=status
            )
        fields: dict[str, Any] = {"id": self.id, "call_id": self.call_id, "name": self.name}
        if self.namespace is not None:
            fields["namespace"] = self.namespace
        if self.kind == "custom_tool_call":
            return OutputCustomCall(input=text, **fields)
        return OutputCall(arguments=text, status=status, **fields)

    def part(self) -> OutputText | ReasoningText:
        """The part of its content that has its text."""
        text = "".join(self.pieces)
        if self.kind == "reasoning":
            return ReasoningText(text)
        return OutputText(text=text, logprobs=self.logprobs)


TEXT_EVENTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}
# The events of calls, by the types of their items, and the field that has the whole of it. The
# arguments of a search stand in its item alone.
CALL_EVENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
# The beginnings of the ids of calls, and the types of their items, by the kinds of tools.
_CALLS = {
    "function": ("fc_", "function_call"),
    "custom": ("ctc_", "custom_tool_call"),
    "tool_search": ("tsc_", "tool_search_call"),
}
