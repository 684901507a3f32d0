"""A chat format: one description of how a family of models writes, used in both directions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyengine.chat.formats.events import Event
from pyengine.chat.formats.sink import Sink, call_id
from pyengine.chat.formats.stream import Reading, Stream
from pyengine.chat.tools import Named, Tool, ToolChoice, check_tools
from pyengine.grammar import Grammar


@dataclass(frozen=True)
class ReasoningMarks:
    """The texts that stand around reasoning.

    Attributes:
        open, close: The marks.
        after: What a model writes behind the closing one, before it answers.
        again: Whether reasoning may be opened more than once in an answer.
    """

    open: str
    close: str
    after: str = ""
    again: bool = False


class AnswerLayout(Protocol):
    """How reasoning, text and calls make up an answer; one family's, or shared by many."""

    @property
    def markers(self) -> frozenset[str]:
        """Every marker."""

    def ignored(self, tool: Tool) -> list[str]:
        """Parts of the tool's schema that calls need not follow, beside the compiler's warnings."""

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether a prompt that ends like this has opened the reasoning."""

    @property
    def text_open(self) -> str:
        """What a model may write before the text of an answer without calls."""

    def reasoning_marks(self, *, calls: bool) -> ReasoningMarks | None:
        """What stands around reasoning, where calls may follow it; None: there is none."""

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
        """Answers with ``least`` to ``most`` calls; None: any text."""

    def read(
        self, stream: Stream, sink: Sink, *, calls: bool, reasoning_open: bool, content: bool
    ) -> Reading[None]:
        """Read a whole answer into the sink; with ``calls``, calls are looked for.

        ``content``: the text was held to a grammar of its own, with choice ``auto``.
        """


@dataclass(frozen=True)
class ChatFormat:
    """How a family of models marks reasoning, tool calls and ends of turns. Immutable.

    Attributes:
        name: As in ``FORMATS``.
        layout: The description.
        stop_tokens: Tokens, by their spelling, that end an answer beside the model's own; a
            tokenizer may lack some.
        make_id: Makes the ids of calls.
    """

    name: str
    layout: AnswerLayout
    stop_tokens: tuple[str, ...] = ()
    make_id: Callable[[], str] = call_id

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        *,
        parallel: bool = True,
        reasoning: bool = True,
        reasoning_open: bool = False,
        content: Grammar | None = None,
    ) -> Grammar | None:
        """The grammar of an answer to a request; None if it may be any text.

        Args:
            tools: The tools of the request; their arguments follow their schemas.
            choice: ``none``: no call. ``auto``: text, then calls or none; with ``content`` either
                that or calls. ``required``: calls only, at least one. ``Named``: one of that tool.
            parallel: Whether there may be more than one call.
            reasoning: Whether a reasoning part may precede all that.
            reasoning_open: Whether the prompt has opened it (:meth:`opens_reasoning`).
            content: The grammar of the text of an answer without calls.

        Raises:
            InvalidRequestError: The choice and the tools do not fit, or a strict tool's schema asks
                for what this family's way of writing arguments cannot be held to.
        """
        check_tools(tools, choice)
        least, most = 0, None if parallel else 1
        if choice == "none" or not tools:
            most = 0
        elif choice == "required":
            least = 1
        elif isinstance(choice, Named):
            tools = [tool for tool in tools if tool.name == choice.name]
            least = most = 1
        return self.layout.grammar(
            tools,
            least,
            most,
            reasoning=reasoning,
            reasoning_open=reasoning_open,
            content=content,
        )

    def warnings(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """What :meth:`grammar` leaves out of the schemas of tools that are not strict.

        The compiler's own warnings come beside these; a client gets both.

        Raises:
            InvalidRequestError: A schema is malformed.
        """
        return tuple(
            f"tool '{tool.name}': {each}"
            for tool in tools
            if not tool.strict
            for each in self.layout.ignored(tool)
        )

    def parser(
        self,
        tools: Sequence[Tool] = (),
        *,
        reasoning_open: bool = False,
        content: bool = False,
    ) -> "Parser":
        """A parser of one answer.

        Args:
            tools: The tools that may be called; without any (as for choice ``none``) no calls are
                looked for.
            reasoning_open: Whether the prompt has opened the reasoning.
            content: Whether :meth:`grammar` got a ``content`` under choice ``auto``: then calls
                begin with a marker where the family has one, and JSON without it is the text.
        """
        return Parser(self, tools, reasoning_open, content)

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether a rendered prompt ends within the reasoning part."""
        return self.layout.opens_reasoning(prompt)

    def needs_special_tokens(self, special_tokens: Collection[str]) -> bool:
        """Whether the text must keep special tokens because some of them are markers."""
        return any(token in marker for marker in self.layout.markers for token in special_tokens)


class Parser:
    """Reads one answer as it comes. O(text) over all pieces; for one thread at a time."""

    __slots__ = ("_reading", "_sink", "_stream")

    def __init__(
        self, format_: ChatFormat, tools: Sequence[Tool], reasoning_open: bool, content: bool
    ) -> None:
        self._stream = Stream()
        self._sink = Sink({tool.name: tool for tool in tools}, format_.make_id, self._stream)
        self._reading = format_.layout.read(
            self._stream,
            self._sink,
            calls=bool(tools),
            reasoning_open=reasoning_open,
            content=content,
        )

    def feed(self, text: str) -> list[Event]:
        """Read more of the answer; returns its events, in order."""
        if text:
            self._stream.push(text)
            next(self._reading, None)
        return self._sink.take()

    def is_content(self, text: str) -> bool:
        """Whether all of ``text``, which comes next, is text of the answer for sure.

        If so, it is read: :meth:`feed` need not be asked. O(text).
        """
        stream, content = self._stream, self._sink.content
        if stream.awaited is None or text[-1:] == "\n" or not content.clear:
            return False
        marks, taker = stream.awaited
        if taker is not content or marks.may_begin_in(text):
            return False
        stream.pass_by(text)
        return True

    def finish(self) -> list[Event]:
        """The answer is over; returns its last events. Nothing may be fed after it."""
        self._stream.ended = True
        next(self._reading, None)
        return self._sink.take()

    @property
    def complete(self) -> bool:
        """Whether a call has begun and the last is whole: the finish reason is ``tool_calls``."""
        return self._sink.complete
