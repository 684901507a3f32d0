"""Answers in a conversation: text, reasoning and tool calls, told apart as they come."""

import asyncio
import re
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pyengine.actors.request import Generation, Outcome, Update, Usage
from pyengine.chat.formats import ContentDelta, Parser, ReasoningDelta, ToolCallStart
from pyengine.chat.text_logprobs import TextLogprobs
from pyengine.logprobs import TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A tool call begins, or goes on.

    Attributes:
        index: Counts the answer's calls from 0.
        id: What names the call, where it begins; else None.
        name: The tool, where the call begins; else None.
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


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """What an answer got since the last update; else as :class:`pyengine.actors.request.Update`.

    Attributes:
        text: New text of the answer itself.
        finish_reason: In the last update ``stop``, ``length``, or ``tool_calls`` where the answer
            stopped after calls, the last of them whole; else None.
        reasoning: New text of the reasoning before it.
        tool_calls: What is new of tool calls.
        logprobs: Of all tokens that the model wrote, those of reasoning, calls and marks too, where
            they are wanted.
        text_logprobs: Those of them that wrote ``text``. They may come after it.
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


@dataclass(frozen=True)
class ReasoningMarks:
    """The tokens around the reasoning, where each mark is one token."""

    open: int | None
    close: int


class Reader:
    """Turns the updates of one generation into those of an answer. The loop of its caller."""

    __slots__ = ("_hidden", "_marks", "_of_text", "_open", "_over", "_parser", "_thought")

    def __init__(
        self,
        parser: Parser,
        *,
        hidden: re.Pattern[str] | None = None,
        marks: ReasoningMarks | None = None,
        reasoning_open: bool = False,
    ) -> None:
        """Read with a parser.

        Args:
            parser: Of the model's chat format, fresh.
            hidden: What is left out of the text: special tokens that came for the parser's sake.
            marks: Count the tokens of the reasoning by these; None does not count them.
            reasoning_open: Whether the prompt has opened the reasoning.
        """
        self._parser = parser
        self._hidden = hidden
        self._marks = marks
        self._open = reasoning_open
        self._over = False  # whether the reasoning is over, or there will be none
        self._thought = 0
        self._of_text = TextLogprobs()

    def read(self, update: Update) -> ChatUpdate:
        """What an update tells."""
        events = self._parser.feed(update.text)
        finish: FinishReason | None = update.finish_reason
        if finish is not None:
            events += self._parser.finish()
        text, reasoning = "", ""
        calls: list[ToolCallDelta] = []
        for event in events:
            if update.logprobs is not None and isinstance(event, ContentDelta | ReasoningDelta):
                begin, is_text = event.end - len(event.text), isinstance(event, ContentDelta)
                self._of_text.add_span(begin, event.end, is_text=is_text)
            if isinstance(event, ContentDelta):
                text += event.text
            elif isinstance(event, ReasoningDelta):
                reasoning += event.text
            elif isinstance(event, ToolCallStart):
                calls.append(ToolCallDelta(event.index, event.id, event.name, ""))
            else:
                calls.append(ToolCallDelta(event.index, None, None, event.fragment))
        if self._hidden is not None:
            text = self._hidden.sub("", text)
            reasoning = self._hidden.sub("", reasoning)
        if finish == "stop" and self._parser.complete:
            finish = "tool_calls"
        return ChatUpdate(
            text,
            update.token_ids,
            finish,
            update.stop_string,
            update.stop_token,
            self._counted(update, bool(text or calls)),
            update.warnings,
            reasoning,
            tuple(calls),
            update.logprobs,
            None if update.logprobs is None else self._tokens_of_text(update.logprobs),
        )

    def _tokens_of_text(self, entries: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        told, hidden = self._of_text.tell(entries), self._hidden
        if hidden is None:
            return told
        return tuple(entry for entry in told if hidden.fullmatch(entry.token) is None)

    def _counted(self, update: Update, spoke: bool) -> Usage:
        """The usage with the reasoning's tokens, marks counted in.

        ``spoke``: anything but reasoning has come. A mark after that opens nothing any more.
        """
        marks = self._marks
        if marks is None:
            return update.usage
        if spoke and not self._open and marks.close not in update.token_ids:
            self._over = True
        for token in update.token_ids:
            if self._over:
                break
            self._open = self._open or token == marks.open
            self._thought += self._open
            self._over = token == marks.close
        return replace(update.usage, reasoning_tokens=self._thought)


class ChatGeneration:
    """An answer that is being written: ``async for update in answer`` streams, ``await answer``
    gives the whole; both may be used, and the answer is kept.

    A handle that is dropped before its end aborts the request, and so does cancelling an
    ``await``. One task at a time may read it.

    Attributes:
        generation: The request behind it, whose text is as the model wrote it.
        prompt_token_ids: The prompt as the model sees it.
    """

    def __init__(
        self,
        generation: Generation,
        reader: Reader | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """Read ``generation``; without a reader all of it is text."""
        self.generation = generation
        self._reader = reader
        self._warnings = warnings
        self._updates: list[ChatUpdate] = []

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model sees it."""
        return self.generation.prompt_token_ids

    @property
    def outcome(self) -> Outcome:
        """How it stands, or how it ended: reason, counts and times."""
        return self.generation.outcome

    def __aiter__(self) -> AsyncIterator[ChatUpdate]:
        return self

    async def __anext__(self) -> ChatUpdate:
        update = await anext(self.generation)
        if self._reader is None:
            made = ChatUpdate(
                update.text,
                update.token_ids,
                update.finish_reason,
                update.stop_string,
                update.stop_token,
                update.usage,
                update.warnings,
                logprobs=update.logprobs,
                text_logprobs=update.logprobs,
            )
        else:
            made = self._reader.read(update)
        if self._warnings:
            made = replace(made, warnings=self._warnings + made.warnings)
            self._warnings = ()
        self._updates.append(made)
        return made

    def __await__(self) -> Generator[object, None, ChatAnswer]:
        return self._whole().__await__()

    async def _whole(self) -> ChatAnswer:
        try:
            async for _ in self:
                pass
        except asyncio.CancelledError:
            self.abort()
            raise
        return _joined(self._updates)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Stop and free the blocks; whoever reads gets RequestAbortedError. Any thread."""
        self.generation.abort()


def _joined(updates: list[ChatUpdate]) -> ChatAnswer:
    """The whole answer, from all of its updates."""
    last = updates[-1]
    assert last.finish_reason is not None
    ids: list[tuple[str, str]] = []
    arguments: list[list[str]] = []
    for update in updates:
        for delta in update.tool_calls:
            if delta.id is not None and delta.name is not None:
                ids.append((delta.id, delta.name))
                arguments.append([])
            arguments[delta.index].append(delta.arguments)
    return ChatAnswer(
        "".join([update.text for update in updates]),
        [token for update in updates for token in update.token_ids],
        last.finish_reason,
        last.stop_string,
        last.stop_token,
        last.usage,
        tuple(warning for update in updates for warning in update.warnings),
        "".join([update.reasoning for update in updates]),
        tuple(
            ToolCall(*named, "".join(pieces)) for named, pieces in zip(ids, arguments, strict=True)
        ),
        None
        if last.logprobs is None
        else tuple(entry for update in updates for entry in update.logprobs or ()),
        None
        if last.text_logprobs is None
        else tuple(entry for update in updates for entry in update.text_logprobs or ()),
    )
