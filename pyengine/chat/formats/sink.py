"""Where readers put what they found: the events of an answer."""

import secrets
from collections.abc import Callable, Mapping

from pyengine.chat.formats.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pyengine.chat.formats.stream import NotACall, Stream
from pyengine.chat.tools import Tool


class Trimmed:
    """Text without the newlines at its borders with markers, and where it ends.

    Newlines at the end are held back until it is known whether a marker follows.
    """

    __slots__ = ("_emit", "_end", "_newlines", "_stream", "begun")

    def __init__(self, emit: Callable[[str, int], None], stream: Stream) -> None:
        """Emit texts and their ends; what comes was read from ``stream`` just now."""
        self._emit = emit
        self._stream = stream
        self._end = 0  # of the newlines
        self._newlines = ""
        self.begun = True  # False: newlines that come now are dropped

    @property
    def clear(self) -> bool:
        """Whether no newlines are held back, nor dropped where they come next."""
        return self.begun and not self._newlines

    def __call__(self, text: str) -> None:
        """Add text."""
        if not self.begun:
            text = text.lstrip("\n")
            self.begun = bool(text)
        if not text:
            return
        end = self._stream.position
        if text[-1] != "\n" and not self._newlines:
            self._emit(text, end)
            return
        kept = text.rstrip("\n")
        if kept:
            self._emit(self._newlines + kept, end - len(text) + len(kept))
            self._newlines = ""
        self._newlines += text[len(kept) :]
        self._end = end

    def border(self) -> None:
        """A marker comes: drop the newlines before it and after it."""
        self._newlines = ""
        self.begun = False

    def end(self) -> None:
        """Nothing more comes: newlines at the very end are text."""
        if self._newlines:
            self._emit(self._newlines, self._end)
            self._newlines = ""


class Sink:
    """Collects events. Fragments of one call that come together become one.

    Attributes:
        content: Takes the answer's text.
        reasoning: Takes the reasoning's text.
        calls: How many calls have begun.
        complete: Whether the last of them is whole, as its reader says.
    """

    def __init__(
        self, tools: Mapping[str, Tool], make_id: Callable[[], str], stream: Stream
    ) -> None:
        self._tools = tools
        self._make_id = make_id
        self._events: list[Event] = []
        self._fragments: list[str] = []
        self.content = Trimmed(lambda text, end: self._add(ContentDelta(text, end)), stream)
        self.reasoning = Trimmed(lambda text, end: self._add(ReasoningDelta(text, end)), stream)
        self.calls = 0
        self.complete = False
        self._ids: set[str] = set()

    def start(self, name: str, written: str | None = None) -> Tool:
        """A call of this tool begins, with the id that the model has ``written``, if that is new.

        Raises:
            NotACall: There is no such tool.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise NotACall
        self.content.border()
        own = self._make_id() if written is None or written in self._ids else written
        self._ids.add(own)
        self._add(ToolCallStart(self.calls, own, name))
        self.calls += 1
        self.complete = False
        return tool

    def arguments(self, fragment: str) -> None:
        """More of the arguments of the call that began last."""
        self._fragments.append(fragment)

    def take(self) -> list[Event]:
        """The events since the last call."""
        self._join()
        events, self._events = self._events, []
        return events

    def _add(self, event: Event) -> None:
        self._join()
        self._events.append(event)

    def _join(self) -> None:
        if self._fragments:
            joined = "".join(self._fragments)
            self._fragments.clear()
            if joined:
                self._events.append(ToolCallArguments(self.calls - 1, joined))


def call_id() -> str:
    """A name for a call, as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """A name for a call of nine letters and digits, as Mistral's templates demand."""
    return secrets.token_hex(5)[:9]
