"""How a family writes one call: its name and its arguments.

Each is both ways from one description: the grammar of a call of a tool, and the reader of a call.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from pyengine.chat.formats import json_text
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import NotACall, Reading, Stream
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar, json_schema, regex, sequence, text

_NAME = re.compile(r"[\w.-]+")
_NUMBER = re.compile(r"[0-9]+")


class Body(Protocol):
    """One call, between the markers that a family puts around it."""

    def grammar(self, tool: Tool) -> Grammar:
        """A call of the tool. Parts with values carry the tag ("arguments", ...)."""

    def ignored(self, tool: Tool) -> list[str]:
        """Parts of the tool's schema that the grammar omits, beside the compiler's warnings."""

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """Read a call into the sink.

        Raises:
            NotACall: The text is none, or stops being one.
        """


def arguments_of(tool: Tool) -> Grammar:
    """The tool's arguments as one JSON object."""
    made = json_schema(
        tool.schema,
        unenforceable="refuse" if tool.strict else "ignore",
        key_order=tool.key_order,
        name=f"tool '{tool.name}'",
    )
    return made.tagged(("arguments",))


@dataclass(frozen=True)
class JsonCall:
    """``{"name": "f", "arguments": {...}}``, in one object.

    Read in any order of the keys, with further keys, and under either common name of the arguments;
    arguments that come as a string of JSON are unpacked.

    Attributes:
        arguments: The key of the arguments.
        name: The key of the function's name.
        number: The key of the call's number, which comes first; None: calls have none.
    """

    arguments: str = "arguments"
    name: str = "name"
    number: str | None = None

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`Body`."""
        head = f'"{self.name}": "{tool.name}", "{self.arguments}": '
        if self.number is None:
            begin = text(f"{{{head}")
        else:
            number = text(f'{{"{self.number}": "'), regex("[0-9]{1,3}")
            begin = sequence(*number, text(f'", {head}'))
        return sequence(begin, arguments_of(tool), text("}"))

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`Body`."""
        return []

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`Body`."""
        yield from stream.literal("{")
        begun = given = False
        early: list[str] = []
        while True:
            key = yield from json_text.string(stream)
            yield from stream.literal(":")
            if key == self.name and not begun:
                sink.start((yield from json_text.string(stream)))
                stream.release()
                begun = True
                _unpack("".join(early), sink)
            elif key in ("arguments", "parameters") and not given:
                given = True
                yield from stream.space()
                if begun and (yield from stream.peek()) != '"':
                    yield from json_text.value(stream, sink.arguments)
                else:
                    yield from json_text.value(stream, early.append)
                    if begun:
                        _unpack("".join(early), sink)
            else:
                yield from json_text.value(stream, _ignore)
            yield from stream.space()
            closed = (yield from stream.peek()) == "}"
            yield from stream.word("}" if closed else ",")
            if closed:
                break
        if not begun:
            raise NotACall
        if not given:
            sink.arguments("{}")


@dataclass(frozen=True)
class NamedJson:
    """The name, then the arguments as a JSON object, with markers before, between and after.

    Attributes:
        optional: Parts of ``between`` that a model may leave out when it is not held to them.
        numbered: The call's number follows its name and a colon; ``before``, name and number are
            the call's id, which the model's template writes again.
    """

    before: str = ""
    between: str = ""
    after: str = ""
    optional: bool = False
    numbered: bool = False

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`Body`."""
        name, made = f"{self.before}{tool.name}", arguments_of(tool)
        head = text(f"{name}{self.between}")
        if self.numbered:
            head = sequence(text(f"{name}:"), regex("[0-9]{1,3}"), text(self.between))
        return sequence(head, made, text(self.after)) if self.after else sequence(head, made)

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`Body`."""
        return []

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`Body`."""
        yield from stream.literal(self.before)
        yield from stream.space()
        pieces: list[str] = []
        yield from stream.run(_NAME, pieces.append)
        name, written = "".join(pieces), None
        if self.numbered:
            yield from stream.literal(":")
            pieces = [f"{self.before}{name}:"]
            yield from stream.run(_NUMBER, pieces.append)
            written = "".join(pieces)
        yield from stream.space()
        if not self.optional or (yield from stream.peek()) != "{":
            yield from stream.literal(self.between)
        yield from stream.space()
        if (yield from stream.peek()) != "{":
            raise NotACall
        sink.start(name, written)
        stream.release()
        yield from json_text.value(stream, sink.arguments)
        yield from stream.literal(self.after)


def _unpack(arguments: str, sink: Sink) -> None:
    """Arguments that were read whole; perhaps a string that holds them."""
    if arguments.startswith('"'):
        arguments = json_text.decoded(arguments)
    sink.arguments(arguments)


def _ignore(text: str) -> None:
    """A value that is skipped."""
