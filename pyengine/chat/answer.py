"""The types of an answer in a conversation: its text, reasoning and tool calls, separated."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pyengine.completion import TextFinish, Usage
from pyengine.logprobs import TokenLogprob

FinishReason = TextFinish | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A tool call begins, or goes on.

    Attributes:
        index: Counts the answer's calls from 0.
        id: The id of the call in its first delta; else None.
        name: The tool in the call's first delta; else None.
        arguments: More of the arguments; all of a call's put together are JSON.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call.

    ``arguments`` is JSON, but for the last call of an answer whose finish reason is not
    ``tool_calls``: ``max_tokens`` or a stop string may have cut that short.
    """

    id: str
    name: str
    arguments: str


def read_arguments(text: str) -> Any:
    """The arguments of a call; of one that was cut short, none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}


class ChatUpdate(msgspec.Struct, frozen=True, gc=False):
    """The part of an answer that came since the last update; else as :class:`pyengine.Update`.

    Attributes:
        text: New text of the answer itself.
        finish_reason: In the last update ``stop``, ``length``, or ``tool_calls`` where the answer
            stopped after calls, the last of them whole; else None.
        reasoning: New text of the reasoning before it.
        tool_calls: New parts of tool calls.
        logprobs: Log-probabilities of all tokens that the model wrote, including reasoning, calls
            and markers; None if they were not asked for.
        text_logprobs: The log-probabilities of tokens that wrote ``text``. They may come after it.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    text_logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer; the fields are those of :class:`ChatUpdate`, over the whole answer."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    text_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to go on with the conversation; without its reasoning."""
        made: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if not self.tool_calls:
            return {**made, "content": self.text}
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.tool_calls
        ]
        return made
