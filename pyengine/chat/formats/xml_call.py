"""Calls between tags, as Qwen3-coder writes them.

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
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyengine.chat.formats import json_text
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import CutShort, Markers, NotACall, Reading, Stream
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar, free_text, optional, regex, repeat, sequence, text
from pyengine.grammar.description import bounded
from pyengine.grammar.parameters import Parameter, ignored_in, parameters_of, xml_parameter

_NAME = re.compile(r"[^<>\n]+")
_END_OF_VALUE = Markers(["</parameter>"])
_ANY_NAME = "[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class XmlCall:
    """One call between tags; see the module."""

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`~pyengine.chat.formats.bodies.Body`.

        Raises:
            InvalidRequestError: A strict tool's schema asks for what tags cannot be held to.
        """
        parameters = parameters_of(tool.schema, tool.strict, tool.name)

        def parts() -> Iterator[Grammar]:
            yield text(f"<function={tool.name}>\n")
            for parameter in parameters.listed:
                part = sequence(xml_parameter(parameter, tool.strict), text("\n"))
                yield part if parameter.required else optional(part)
            if parameters.others:
                yield repeat(_any_parameter())
            yield text("</function>")

        return sequence(*bounded(parts()))

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        return ignored_in(tool.schema)

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        yield from stream.literal("<function=")
        name = yield from _tag_name(stream)
        tool = sink.start(name.strip())
        stream.release()
        parameters = parameters_of(tool.schema, strict=False)
        before = "{"
        given: set[str] = set()  # of two values of one parameter the first counts
        while (yield from _opens(stream)):
            name = yield from _tag_name(stream)
            if name in given:
                yield from _value(stream, _ignore, parameters.named(name))
                continue
            given.add(name)
            key = json.dumps(name, ensure_ascii=False)
            sink.arguments(f"{before}{key}: ")
            yield from _value(stream, sink.arguments, parameters.named(name))
            before = ", "
        sink.arguments("{}" if before == "{" else "}")


def _opens(stream: Stream) -> Reading[bool]:
    """Whether another parameter comes, rather than the function's end."""
    options = ("<parameter=", "</function>")
    found = yield from stream.next_of(options)
    if found is None:
        rest = stream.text[stream.at :].lstrip()
        raise CutShort if any(option.startswith(rest) for option in options) else NotACall
    return found == "<parameter="


def _tag_name(stream: Stream) -> Reading[str]:
    pieces: list[str] = []
    yield from stream.run(_NAME, pieces.append)
    yield from stream.word(">")
    return "".join(pieces)


def _value(stream: Stream, emit: Callable[[str], None], parameter: Parameter) -> Reading[None]:
    """A value up to its closing tag, without the newline on either side."""
    if "string" not in parameter.types and parameter.types & {"array", "object"}:
        yield from stream.space()
        if (yield from stream.peek()) in "[{":  # JSON, whose strings may hold the closing tag
            yield from json_text.value(stream, emit)
            yield from stream.literal("</parameter>")
            return
    if parameter.is_text:
        emit('"')
        take = _Inner(lambda piece: emit(json.dumps(piece, ensure_ascii=False)[1:-1]))
    else:
        pieces: list[str] = []
        take = _Inner(pieces.append)
    if (yield from stream.until(_END_OF_VALUE, take)) is None:
        raise NotACall
    emit('"' if parameter.is_text else parameter.json_of("".join(pieces)))


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


def _any_parameter() -> Grammar:
    """A parameter that the schema does not list."""
    anything = Parameter("", True, False, frozenset())
    value = free_text(["</parameter>"]).tagged(("argument", anything))
    name = regex(_ANY_NAME).tagged(("parameter",))
    return sequence(text("<parameter="), name, text(">\n"), value, text("\n</parameter>\n"))


def _ignore(text: str) -> None:
    """A value that counts for nothing."""
