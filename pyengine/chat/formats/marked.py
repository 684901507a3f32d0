"""Answers in which marks set reasoning and calls apart from text: all families but one.

::

    [reasoning]  [text]  [open  begin call end  between  begin call end  close]

The grammar writes the marks as they are described; the reader takes any whitespace where they have
some, reads calls wherever they come, and leaves as text what turns out to be no call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.chat.formats.bodies import Body
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import CutShort, NotACall, Reading, Stream, marks
from pyengine.chat.tools import Tool
from pyengine.grammar import (
    Grammar,
    any_of,
    free_text,
    optional,
    regex,
    repeat,
    sequence,
    text,
)
from pyengine.grammar.algebra import any_but
from pyengine.grammar.description import bounded


@dataclass(frozen=True)
class Reasoning:
    """How a family marks what it thinks before it answers; ``after`` follows the closing mark."""

    open: str = "<think>"
    close: str = "</think>"
    after: str = "\n\n"

    def grammar(self, is_open: bool) -> Grammar:
        """A reasoning part that need not be there, or whose mark the prompt has opened."""
        thoughts = free_text([self.close, self.open]).tagged(("reasoning",))
        end = text(self.close + self.after)
        if is_open:
            return sequence(thoughts, end)
        return optional(sequence(text(self.open), thoughts, end))


@dataclass(frozen=True)
class Bare:
    """Calls that begin an answer without a mark: their first character, and what is around them."""

    first: str
    open: str = ""
    close: str = ""


@dataclass(frozen=True)
class Calls:
    """How a family marks calls.

    Attributes:
        body: One call.
        begin, end: Around each call.
        between: From one call to the next.
        open, close: Around all of them, in words between which a model may write whitespace. The
            first word of ``open``, or else ``begin``, tells that calls follow.
        others: What tells it too: beginnings of ``body``.
        bare: How calls may begin an answer without ``open``.
    """

    body: Body
    begin: str = ""
    end: str = ""
    between: str = ""
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    bare: Bare | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """What begins calls anywhere in the text."""
        first = self.open[0] if self.open else self.begin
        return tuple(mark.strip() for mark in (first, *self.others) if mark)

    @property
    def closers(self) -> tuple[str, ...]:
        """What ends calls and can hardly be anything else."""
        words = (self.end, *self.close, self.bare.close if self.bare else "")
        return tuple(word.strip() for word in words if len(word.strip()) > 5)

    def grammar(self, tools: Sequence[Tool], most: int | None, bare: bool = False) -> Grammar:
        """One call or more, at most ``most`` (None: any number)."""
        calls = (self.body.grammar(tool).tagged(("call", tool.name)) for tool in tools)
        one = any_of(*bounded(calls))
        call = _around(self.begin, one, self.end)
        between = text(self.between) if self.between else None
        some = call if most == 1 else repeat(call, min=1, max=most, separator=between)
        if bare and self.bare:
            return _around(self.bare.open, some, self.bare.close)
        return _around("".join(self.open), some, "".join(self.close))

    def read(self, stream: Stream, sink: Sink, mark: str | None) -> Reading[None]:
        """Read calls from their mark on; None: those that begin the answer without one.

        Raises:
            NotACall: They stop being calls.
        """
        opening: tuple[str, ...]
        if mark is None:
            opening = (self.bare.open if self.bare else "", self.begin)
        elif mark in self.others:
            opening = ()
        else:
            opening = (*self.open, self.begin)
        for word in opening:
            yield from stream.literal(word)
        close = (self.bare.close,) if mark is None and self.bare else self.close
        first, *rest = [word.strip() for word in close] or [""]
        following = (self.between + self.begin).strip()
        while True:
            yield from self.body.read(stream, sink)
            sink.complete = True
            sink.content.border()
            if self.end.strip() and not (yield from stream.next_of([self.end.strip()])):
                return
            stream.hold()
            found = yield from stream.next_of([following, first])
            # Without a mark between calls, another one comes unless their end does.
            if found != following if following else found is not None:
                break
            if following and first and (yield from stream.next_of([first])):
                break  # a comma before the end
        stream.release()
        if found is not None:
            for word in rest:
                yield from stream.next_of([word])


@dataclass(frozen=True)
class Marked:
    """Reasoning, text and calls, told apart by marks; see the module."""

    calls: Calls
    reasoning: Reasoning | None = None

    @property
    def marks(self) -> frozenset[str]:
        """Every mark, for whoever must keep special tokens in the text."""
        calls = self.calls
        found = {*calls.marks, *calls.closers, *calls.open, *calls.close, calls.begin, calls.end}
        if self.reasoning is not None:
            found |= {self.reasoning.open, self.reasoning.close}
        return frozenset(mark.strip() for mark in found if mark.strip())

    def ignored(self, tool: Tool) -> list[str]:
        """See :meth:`ChatFormat.warnings`."""
        return self.calls.body.ignored(tool)

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether the prompt ends with the opening mark of the reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.open)

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
        """See :meth:`ChatFormat.grammar`; ``least`` to ``most`` calls of any of the tools."""
        if content is not None:
            content = content.tagged(("content",))
        if most == 0:
            answer = content
            if answer is None and tools:
                answer = self._text()
        elif least:
            answer = self.calls.grammar(tools, most, bare=True)
        elif content is not None:
            # A mark, where there is one, tells a call from content that begins with a brace too.
            answer = any_of(content, self.calls.grammar(tools, most, bare=not self.calls.marks))
        else:
            answer = self._auto(tools, most)
        if answer is None or self.reasoning is None or not (reasoning or reasoning_open):
            return answer
        return sequence(self.reasoning.grammar(reasoning_open), answer)

    def read(
        self, stream: Stream, sink: Sink, *, calls: bool, reasoning_open: bool, content: bool
    ) -> Reading[None]:
        """Read a whole answer."""
        yield from self._read_reasoning(stream, sink, reasoning_open)
        before = marks(*(self.calls.marks if calls else ()))
        after = marks(*self.calls.marks, *self.calls.closers)
        # As the grammar has it: content of its own grammar may begin as a bare call does.
        bare = self.calls.bare if calls and not (content and self.calls.marks) else None
        if bare is not None and (yield from stream.comes(bare.first)):
            yield from self._read_calls(stream, sink, None)
        while True:
            some = bool(sink.calls)
            mark = yield from stream.until(
                after if some else before, sink.content, partial=not some
            )
            if mark is None:
                sink.content.end()
                return
            if mark in self.calls.marks:
                stream.at -= len(mark)
                yield from self._read_calls(stream, sink, mark)

    def _read_calls(self, stream: Stream, sink: Sink, mark: str | None) -> Reading[None]:
        """Read calls; what turns out to be none is text, but not the head of one cut short."""
        stream.hold()
        try:
            yield from self.calls.read(stream, sink, mark)
        except CutShort:
            stream.release()
            stream.at = len(stream.text)
        except NotACall:
            if stream.holding:
                sink.content(stream.held())

    def _read_reasoning(self, stream: Stream, sink: Sink, is_open: bool) -> Reading[None]:
        if self.reasoning is None:
            return
        written = yield from stream.next_of([self.reasoning.open])
        if written is None and not is_open:
            return
        sink.reasoning.begun = False
        if (yield from stream.until(marks(self.reasoning.close), sink.reasoning)) is not None:
            sink.content.border()
        else:
            sink.reasoning.end()

    def _text(self) -> Grammar:
        """Text without a mark in it."""
        opens = () if self.reasoning is None else (self.reasoning.open,)
        return free_text((*self.calls.marks, *opens)).tagged(("content",))

    def _auto(self, tools: Sequence[Tool], most: int | None) -> Grammar:
        """Text, or calls, or text and then calls."""
        marked = optional(self.calls.grammar(tools, most)) if self.calls.marks else None
        bare = self.calls.bare
        if bare is None:
            assert marked is not None, "calls need a mark, or must be bare"
            return sequence(self._text(), marked)
        # Text must not begin as a call does; a mark within it still leads to calls.
        begins = regex(any_but([bare.first, *self.calls.marks])).tagged(("content",))
        parts = (begins, self._text(), *([] if marked is None else [marked]))
        options = [self.calls.grammar(tools, most, bare=True), sequence(*parts)]
        if self.calls.marks:
            options.append(self.calls.grammar(tools, most))
        return optional(any_of(*options))


def _around(before: str, inner: Grammar, after: str) -> Grammar:
    parts = [text(before)] if before else []
    parts.append(inner)
    return sequence(*parts, text(after)) if after else sequence(*parts)
