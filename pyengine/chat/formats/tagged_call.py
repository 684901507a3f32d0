"""Calls whose parameters stand between tags, as Qwen3-coder, GLM-4.5 and MiniMax-M2 write them.

::

    <function=name>
    <parameter=city>
    Paris
    </parameter>
    </function>

A string is written as it is, anything else as JSON; which it is, the schema says. Strings,
lists and objects are passed on as they come, other values when they are whole.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from pyengine.chat.formats import json_text
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import CutShort, NotACall, Reading, Stream, markers
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar, free_text, regex, repeat, sequence, text
from pyengine.grammar.listed import listed
from pyengine.grammar.parameters import (
    QWEN_TAGS,
    Parameter,
    ParameterTags,
    ignored_in,
    parameters_of,
    tagged_parameter,
)

_ANY_NAME = "[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class TaggedCall:
    """One call between tags; see the module.

    Attributes:
        begin: Before the function's name.
        named: After it.
        tags: Around each parameter.
        between: After each parameter.
        end: After the last one.
    """

    begin: str = "<function="
    named: str = ">\n"
    tags: ParameterTags = QWEN_TAGS
    between: str = "\n"
    end: str = "</function>"

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`~pyengine.chat.formats.bodies.Body`.

        Raises:
            InvalidRequestError: A strict tool's schema asks for what tags cannot be held to.
        """
        parameters = parameters_of(tool.schema, tool.strict, tool.name, tool.key_order)

        def parts() -> Iterator[tuple[bool, Grammar]]:
            for parameter in parameters.listed:
                one = tagged_parameter(parameter, tool.strict, self.tags)
                yield parameter.required, sequence(one, text(self.between))

        head = text(f"{self.begin}{tool.name}{self.named}")
        others = [repeat(self._any_parameter())] if parameters.others else []
        return sequence(head, *listed(parts(), "", tool.key_order), *others, text(self.end))

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        return ignored_in(tool.schema)

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        yield from stream.literal(self.begin)
        yield from stream.space()
        name = yield from self._name(stream, self.named)
        tool = sink.start(name.strip())
        stream.release()
        parameters = parameters_of(tool.schema, strict=False)
        before = "{"
        given: set[str] = set()  # of two values of one parameter the first counts
        while (yield from self._opens(stream)):
            name = yield from self._name(stream, self.tags.between)
            if name in given:
                yield from self._value(stream, _ignore, parameters.named(name))
                continue
            given.add(name)
            key = json.dumps(name, ensure_ascii=False)
            sink.arguments(f"{before}{key}: ")
            yield from self._value(stream, sink.arguments, parameters.named(name))
            before = ", "
        sink.arguments("{}" if before == "{" else "}")

    def _opens(self, stream: Stream) -> Reading[bool]:
        """Whether another parameter comes, rather than the call's end."""
        options = (self.tags.before, self.end)
        found = yield from stream.next_of(options)
        if found is None:
            rest = stream.text[stream.at :].lstrip()
            raise CutShort if any(option.startswith(rest) for option in options) else NotACall
        return found == self.tags.before

    def _name(self, stream: Stream, behind: str) -> Reading[str]:
        """A name and what stands behind it, up to the line's end."""
        pieces: list[str] = []
        yield from stream.run(self.tags.name, pieces.append)
        first, *rest = behind.split() or [""]
        yield from stream.word(first)
        for word in rest:
            yield from stream.literal(word)
        return "".join(pieces)

    def _value(
        self, stream: Stream, emit: Callable[[str], None], parameter: Parameter
    ) -> Reading[None]:
        """A value up to its closing tag; without the newline on either side, where it has lines."""
        end = self.tags.end
        if "string" not in parameter.types and parameter.types & {"array", "object"}:
            yield from stream.space()
            if (yield from stream.peek()) in "[{":  # JSON, whose strings may hold the closing tag
                yield from json_text.value(stream, emit)
                yield from stream.literal(end)
                return
        pieces: list[str] = []
        take: Callable[[str], None] = pieces.append
        if parameter.is_text:
            emit('"')
            take = partial(_emit_text, emit)
        if self.tags.after.startswith("\n"):
            take = _Inner(take)
        if (yield from stream.until(markers(end), take)) is None:
            raise NotACall
        emit('"' if parameter.is_text else parameter.json_of("".join(pieces)))

    def _any_parameter(self) -> Grammar:
        """A parameter that the schema does not list."""
        anything, tags = Parameter("", True, False, frozenset()), self.tags
        value = free_text([tags.end]).tagged(("argument", anything))
        name = regex(_ANY_NAME).tagged(("parameter",))
        parts = text(tags.before), name, text(tags.between), value, text(tags.after)
        return sequence(*parts, text(self.between))


class _Inner:
    """Text without the one newline that it may begin and end with."""

    __slots__ = ("_begun", "_emit", "_newline")

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._begun = False
        self._newline = False

    def __call__(self, piece: str) -> None:
        if not self._begun:
            self._begun = True
            piece = piece.removeprefix("\n")
        if not piece:
            return
        if self._newline:
            piece = "\n" + piece
        self._newline = piece.endswith("\n")
        self._emit(piece[:-1] if self._newline else piece)


def _emit_text(emit: Callable[[str], None], piece: str) -> None:
    """A piece of a string, as JSON has it between quotes."""
    emit(json.dumps(piece, ensure_ascii=False)[1:-1])


def _ignore(text: str) -> None:
    """A value that counts for nothing."""
