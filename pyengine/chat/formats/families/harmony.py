"""gpt-oss: answers are messages on channels (OpenAI's harmony response format).

::

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The prompt ends with ``<|start|>assistant``. Analysis is reasoning; a message to a function is a
call, and ends the turn; every other message is text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.chat.formats import json_text
from pyengine.chat.formats.bodies import arguments_of
from pyengine.chat.formats.format import ChatFormat, ReasoningMarks
from pyengine.chat.formats.sink import Sink, Trimmed
from pyengine.chat.formats.stream import Markers, NotACall, Reading, Stream
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar, any_of, free_text, optional, sequence, text
from pyengine.grammar.description import bounded

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_NEXT = "<|end|><|start|>assistant"
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_TO = "to=functions."
_NO_HEADER = 200  # characters after which a header is taken for text


@dataclass(frozen=True)
class Channels:
    """Messages on channels; see the module. There is one call in a turn at most."""

    @property
    def markers(self) -> frozenset[str]:
        """Every marker."""
        return frozenset((_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS))

    def ignored(self, tool: Tool) -> list[str]:
        """See :meth:`ChatFormat.warnings`; arguments are JSON, and its compiler warns."""
        return []

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether the prompt ends within an analysis message."""
        return prompt.rstrip().endswith(f"{_CHANNEL}analysis{_MESSAGE}")

    @property
    def text_open(self) -> str:
        """The head of the final message."""
        return f"{_CHANNEL}final{_MESSAGE}"

    def reasoning_marks(self, *, calls: bool) -> ReasoningMarks | None:
        """Analysis messages; behind the last of them the answer is a call, or the final message."""
        after = "" if calls else f"<|start|>assistant{_CHANNEL}final{_MESSAGE}"
        return ReasoningMarks(f"{_CHANNEL}analysis{_MESSAGE}", _ENDS[0], after, again=True)

    def grammar(
        self,
        tools: Sequence[Tool],
        least: int,
        most: int | None,
        *,
        reasoning: bool,
        reasoning_open: bool,
        content: Grammar | None,
    ) -> Grammar | None:
        """See :meth:`ChatFormat.grammar`."""
        if content is None and not tools:
            return None
        inner = free_text(_TEXT_STOPS) if content is None else content
        final = sequence(text(f"{_CHANNEL}final{_MESSAGE}"), inner.tagged(("content",)))
        calls = list(bounded(_call(tool) for tool in tools)) if most != 0 else []
        answer = any_of(*calls) if least else any_of(final, *calls)
        if calls and content is None and not least:
            # The preamble: text for the user before a call.
            preamble = free_text(_TEXT_STOPS).tagged(("content",))
            head, tail = text(f"{_CHANNEL}commentary{_MESSAGE}"), text(_NEXT)
            answer = sequence(optional(sequence(head, preamble, tail)), answer)
        thoughts = free_text(_TEXT_STOPS).tagged(("reasoning",))
        if reasoning_open:
            return sequence(thoughts, text(_NEXT), answer)
        if reasoning:
            head = text(f"{_CHANNEL}analysis{_MESSAGE}")
            return sequence(optional(sequence(head, thoughts, text(_NEXT))), answer)
        return answer

    def read(
        self, stream: Stream, sink: Sink, *, calls: bool, reasoning_open: bool, content: bool
    ) -> Reading[None]:
        """Read a whole answer."""
        if reasoning_open:
            yield from _text(stream, sink.reasoning)
        while not stream.ended or stream.at < len(stream.text):
            stream.hold()
            header = yield from _header(stream)
            if header is None:  # no message: text, up to where one may begin
                held = stream.held()
                if not (stream.ended and stream.at == len(stream.text) and _is_head(held)):
                    sink.content(held)
                marker = yield from stream.until(_OUTSIDE, sink.content)
                if marker in _BEGINS:
                    stream.at -= len(marker)
                continue
            recipient = _RECIPIENT.search(header)
            if recipient is None or not calls:
                stream.release()
                thinks = recipient is None and "analysis" in header
                yield from _text(stream, sink.reasoning if thinks else sink.content)
            else:
                yield from _read_call(stream, sink, recipient.group(1))
        sink.content.end()


_TEXT_STOPS = (*_ENDS, _START)
_TEXT_ENDS = Markers(_TEXT_STOPS)
_BEGINS = (_CHANNEL, _START)
_OUTSIDE = Markers((*_BEGINS, *_ENDS))
_HEADER_ENDS = Markers((_MESSAGE, *_ENDS))


def _call(tool: Tool) -> Grammar:
    head = f"{_CHANNEL}commentary to=functions.{tool.name} <|constrain|>json{_MESSAGE}"
    return sequence(text(head), arguments_of(tool)).tagged(("call", tool.name))


def _header(stream: Stream) -> Reading[str | None]:
    """The header of a message, read up to and with its marker; None if no message comes."""
    if (begins := (yield from stream.next_of([*_BEGINS, "to="]))) is None:
        return None
    pieces = [begins]
    while sum(map(len, pieces)) < _NO_HEADER:
        end, marker = _HEADER_ENDS.find(stream.text, stream.at)
        pieces.append(stream.text[stream.at : end])
        stream.at = end
        if marker is not None:
            if marker != _MESSAGE:
                return None
            stream.at += len(marker)
            return "".join(pieces)
        if stream.ended:
            stream.at = len(stream.text)
            return None
        yield
    return None


def _is_head(held: str) -> bool:
    """Whether a text that ends like this ends within a header."""
    held = held.lstrip()
    if not held or len(held) >= _NO_HEADER:
        return False
    return held.startswith((*_BEGINS, _TO)) or _TO.startswith(held)


def _text(stream: Stream, take: Trimmed) -> Reading[None]:
    """The text of a message."""
    if (yield from stream.until(_TEXT_ENDS, take)) == _START:
        stream.at -= len(_START)
    take.end()


def _read_call(stream: Stream, sink: Sink, name: str) -> Reading[None]:
    """A message to a function; to an unknown function, or without JSON, it is text."""
    try:
        yield from stream.space()
        if (yield from stream.peek()) == "{":
            sink.start(name)
            stream.release()
            yield from json_text.value(stream, sink.arguments)
            sink.complete = True
    except NotACall:
        pass
    stream.release()
    yield from _text(stream, sink.content)


GPT_OSS = ChatFormat("gpt_oss", Channels(), stop_tokens=("<|return|>", "<|call|>"))
