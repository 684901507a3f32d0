"""Answers in which markers delimit reasoning and calls: all families but Harmony.

::

    [reasoning]  [text]  [open  begin call end  between  begin call end  close]

The grammar writes the markers exactly. The reader takes any whitespace where a marker has some,
reads calls wherever they come, and leaves as text what turns out to be no call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.chat.formats.bodies import Body
from pyengine.chat.formats.format import ReasoningMarks
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import CutShort, NotACall, Reading, Stream, markers
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
    """The markers around a family's reasoning.

    Attributes:
        open, close: The markers.
        after: What follows the closing one.
        before: What a model writes first, with reasoning and without.
    """

    open: str = "<think>"
    close: str = "</think>"
    after: str = "\n\n"
    before: str = ""

    def grammar(self, is_open: bool) -> Grammar:
        """An optional reasoning part; ``is_open``: the prompt ends with its opening marker."""
        thoughts = free_text([self.close, self.open]).tagged(("reasoning",))
        end = text(self.close + self.after)
        if is_open:
            return sequence(thoughts, end)
        begin = text(self.open)
        if self.before:
            begin = sequence(optional(text(self.before)), begin)
        return optional(sequence(begin, thoughts, end))


@dataclass(frozen=True)
class Bare:
    """Calls that begin an answer without a marker: their first character, and the text around."""

    first: str
    open: str = ""
    close: str = ""


@dataclass(frozen=True)
class Calls:
    """How a family writes calls.

    Attributes:
        body: One call.
        begin, end: Around each call.
        between: From one call to the next.
        open, close: Around all of them, in words between which a model may write whitespace. The
            first word of ``open``, or else ``begin``, is the marker that begins calls.
        others: Further markers that begin calls: beginnings of ``body``.
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
    def markers(self) -> tuple[str, ...]:
        """The markers that begin calls anywhere in the text."""
        first = self.open[0] if self.open else self.begin
        return tuple(marker.strip() for marker in (first, *self.others) if marker)

    @property
    def closers(self) -> tuple[str, ...]:
        """The words that end calls and are long enough not to occur in text by chance."""
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

    def read(self, stream: Stream, sink: Sink, marker: str | None) -> Reading[None]:
        """Read calls from ``marker`` on; None: calls that begin the answer without a marker.

        Raises:
            NotACall: They stop being calls.
        """
        opening: tuple[str, ...]
        if marker is None:
            opening = (self.bare.open if self.bare else "", self.begin)
        elif marker in self.others:
            opening = ()
        else:
            opening = (*self.open, self.begin)
        for word in opening:
            yield from stream.literal(word)
        close = (self.bare.close,) if marker is None and self.bare else self.close
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
            # Without a marker between calls, another call follows unless they end.
            if found != following if following else found is not None:
                break
            if following and first and (yield from stream.next_of([first])):
                break  # a comma before the end
        stream.release()
        if found is not None:
            for word in rest:
                yield from stream.next_of([word])


@dataclass(frozen=True)
class Delimited:
    """An answer layout in which markers delimit reasoning and calls; see the module.

    Attributes:
        calls: How calls are written.
        reasoning: What stands around the reasoning; None: there is none.
        around: The markers that a model may write around its text, or may not.
    """

    calls: Calls
    reasoning: Reasoning | None = None
    around: tuple[str, ...] = ()

    @property
    def markers(self) -> frozenset[str]:
        """Every marker; those that are special tokens must stay in the text."""
        calls = self.calls
        found = {*calls.markers, *calls.closers, *calls.open, *calls.close, calls.begin, calls.end}
        if self.reasoning is not None:
            found |= {self.reasoning.open, self.reasoning.close}
        found |= set(self.around)
        return frozenset(marker.strip() for marker in found if marker.strip())

    def ignored(self, tool: Tool) -> list[str]:
        """See :meth:`ChatFormat.warnings`."""
        return self.calls.body.ignored(tool)

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether the prompt ends with the opening marker of the reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.open)

    @property
    def text_open(self) -> str:
        """The marker before the text, if the family has one."""
        return self.around[0] if self.around else ""

    def reasoning_marks(self, *, calls: bool) -> ReasoningMarks | None:
        """The marks of the family's reasoning, if it has one."""
        found = self.reasoning
        return None if found is None else ReasoningMarks(found.open, found.close, found.after)

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
            content = self._surrounded(content.tagged(("content",)))
        if most == 0:
            answer = content
            if answer is None and tools:
                answer = self._surrounded(self._text())
        elif least:
            answer = self.calls.grammar(tools, most, bare=True)
        elif content is not None:
            # Where calls have a marker, content may begin with a brace as calls do.
            answer = any_of(content, self.calls.grammar(tools, most, bare=not self.calls.markers))
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
        before = markers(*(self.calls.markers if calls else ()), *self.around)
        after = markers(*self.calls.markers, *self.calls.closers, *self.around)
        # As in the grammar: content with its own grammar may begin as a bare call does.
        bare = self.calls.bare if calls and not (content and self.calls.markers) else None
        if bare is not None and (yield from stream.comes(bare.first)):
            yield from self._read_calls(stream, sink, None)
        while True:
            some = bool(sink.calls)
            marker = yield from stream.until(
                after if some else before, sink.content, partial=not some
            )
            if marker is None:
                sink.content.end()
                return
            if marker in self.around:
                sink.content.border()
            elif marker in self.calls.markers:
                stream.at -= len(marker)
                yield from self._read_calls(stream, sink, marker)

    def _read_calls(self, stream: Stream, sink: Sink, marker: str | None) -> Reading[None]:
        """Read calls. What turns out to be no call is text; the head of one cut short is not."""
        stream.hold()
        try:
            yield from self.calls.read(stream, sink, marker)
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
            sink.content.begun = not self.reasoning.before
            return
        sink.reasoning.begun = False
        if (yield from stream.until(markers(self.reasoning.close), sink.reasoning)) is not None:
            sink.content.border()
        else:
            sink.reasoning.end()

    def _text(self) -> Grammar:
        """Text without a marker in it."""
        opens = () if self.reasoning is None else (self.reasoning.open,)
        return free_text((*self.calls.markers, *opens, *self.around)).tagged(("content",))

    def _surrounded(self, content: Grammar) -> Grammar:
        """The text, or the text between its markers."""
        if not self.around:
            return content
        before, after = self.around
        return any_of(content, sequence(text(before), content, text(after)))

    def _then_calls(self, calls: Grammar) -> Grammar:
        """Text, and then calls or none, which may stand between the markers of the text, too."""
        plain = sequence(self._text(), optional(calls))
        if not self.around:
            return plain
        before, after = self.around
        # What both ways begin with is written once: the text could not end in two of them.
        ends = any_of(sequence(text(after), optional(calls)), sequence(calls, text(after)))
        return any_of(plain, sequence(text(before), self._text(), ends))

    def _auto(self, tools: Sequence[Tool], most: int | None) -> Grammar:
        """Text, or calls, or text and then calls."""
        calls = self.calls.grammar(tools, most) if self.calls.markers else None
        bare = self.calls.bare
        if bare is None:
            assert calls is not None, "calls need a marker, or must be bare"
            return self._then_calls(calls)
        # Text must not begin as a call does; a marker within it still leads to calls.
        begins = regex(any_but([bare.first, *self.calls.markers])).tagged(("content",))
        parts = (begins, self._text(), *([] if calls is None else [optional(calls)]))
        options = [self.calls.grammar(tools, most, bare=True), sequence(*parts)]
        if calls is not None:
            options.append(calls)
        return optional(any_of(*options))


def _around(before: str, inner: Grammar, after: str) -> Grammar:
    parts = [text(before)] if before else []
    parts.append(inner)
    return sequence(*parts, text(after)) if after else sequence(*parts)
