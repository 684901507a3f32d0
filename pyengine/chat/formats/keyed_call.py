"""Calls as Gemma 4 writes them, ``call:name{city:<|"|>Oslo<|"|>,days:2}``, as JSON.

The notation of values is that of :mod:`pyengine.grammar.keyed`. Strings are passed on as they come,
other values when they are whole. Read are also keys and strings between quotes, as JSON has them,
and what is neither a string nor JSON is a string.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from pyengine.chat.formats import json_text
from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import CutShort, NotACall, Reading, Stream, markers
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar, regex, repeat, sequence, text
from pyengine.grammar.keyed import KEY, KeyedValues, in_order
from pyengine.grammar.listed import listed
from pyengine.grammar.parameters import Parameter, Parameters, parameters_of
from pyengine.grammar.reading import TYPES, SchemaReader

_NAME = re.compile(r"[\w.-]+")
_BARE = re.compile(r"[^,\[\]{}<]+")
_BARE_KEY = re.compile(r"[^\s:,\[\]{}<\"]+")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSES = {"[": "]", "{": "}"}
_DEEPEST = 64  # values within values; what goes deeper is no call


@dataclass(frozen=True)
class KeyedCall:
    """One call; see the module.

    Attributes:
        begin: Before the name.
        quote: Before and after a string.
    """

    begin: str = "call:"
    quote: str = '<|"|>'

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`~pyengine.chat.formats.bodies.Body`.

        Raises:
            InvalidRequestError: A strict tool's schema asks for what cannot be held to, or a key
                cannot be written without quotes.
        """
        inner, _ = self._arguments(tool)
        return sequence(text(f"{self.begin}{tool.name}{{"), *inner, text("}"))

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        return self._arguments(tool)[1]

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        yield from stream.literal(self.begin)
        pieces: list[str] = []
        yield from stream.space()
        yield from stream.run(_NAME, pieces.append)
        yield from stream.space()
        if (yield from stream.peek()) != "{":
            raise NotACall
        sink.start("".join(pieces))
        stream.release()
        yield from self._items(stream, sink, "{", 0)

    def _arguments(self, tool: Tool) -> tuple[list[Grammar], list[str]]:
        """What stands between the braces, and keywords of the schema that it does not enforce."""
        parameters = parameters_of(tool.schema, tool.strict, tool.name, tool.key_order)
        reader = SchemaReader(tool.schema)
        ignored = [f"'{key}' of the parameters is not enforced" for key in parameters.ignored]

        def values(name: str) -> KeyedValues:
            return KeyedValues(self.quote, reader, tool.strict, name, tool.key_order)

        def pairs() -> Iterator[tuple[bool, Grammar]]:
            for parameter in _sorted(parameters):
                of = values(f"parameter '{parameter.name}'")
                key = text(f"{of.key(parameter.name)}:")
                value = of.grammar(parameter.given).tagged(("keyed", parameter))
                ignored.extend(of.ignored)
                yield parameter.required, sequence(key, value)

        if parameters.others:
            value = values("a parameter").any().tagged(("keyed", _ANY))
            pair = sequence(regex(KEY).tagged(("parameter",)), text(":"), value)
            return [repeat(pair, separator=text(","))], ignored
        return listed(pairs(), ",", tool.key_order), ignored

    def _value(self, stream: Stream, sink: Sink, depth: int) -> Reading[None]:
        yield from stream.space()
        first = yield from stream.peek()
        if first in _CLOSES:
            yield from self._items(stream, sink, first, depth + 1)
        elif first == '"':
            yield from json_text.value(stream, sink.arguments)
        elif first == self.quote[0]:
            yield from stream.word(self.quote)
            sink.arguments('"')
            yield from self._string(stream, sink)
            sink.arguments('"')
        else:
            pieces: list[str] = []
            yield from stream.run(_BARE, pieces.append)
            sink.arguments(_bare("".join(pieces).strip()))

    def _string(self, stream: Stream, sink: Sink) -> Reading[None]:
        def emit(piece: str) -> None:
            sink.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

        if (yield from stream.until(markers(self.quote), emit)) is None:
            raise CutShort

    def _items(self, stream: Stream, sink: Sink, opens: str, depth: int) -> Reading[None]:
        """An object or a list, from its bracket on."""
        if depth > _DEEPEST:
            raise NotACall
        stream.at += 1
        closes = _CLOSES[opens]
        sink.arguments(opens)
        count = 0
        while (yield from stream.next_of([closes])) is None:
            if count:
                yield from stream.literal(",")
                if (yield from stream.next_of([closes])):
                    break
                sink.arguments(", ")
            count += 1
            if opens == "{":
                yield from self._key(stream, sink)
            yield from self._value(stream, sink, depth)
        sink.arguments(closes)

    def _key(self, stream: Stream, sink: Sink) -> Reading[None]:
        yield from stream.space()
        first = yield from stream.peek()
        pieces: list[str] = []
        if first == '"':
            pieces.append((yield from json_text.string(stream)))
        elif first == self.quote[0]:
            yield from stream.word(self.quote)
            if (yield from stream.until(markers(self.quote), pieces.append)) is None:
                raise CutShort
        else:
            yield from stream.run(_BARE_KEY, pieces.append)
        if not pieces:
            raise NotACall
        yield from stream.literal(":")
        sink.arguments(f"{json.dumps(''.join(pieces), ensure_ascii=False)}: ")


_ANY = Parameter("", True, False, TYPES)


def _sorted(parameters: Parameters) -> list[Parameter]:
    named = {parameter.name: parameter for parameter in parameters.listed}
    return [named[name] for name in in_order(named)]


def _bare(word: str) -> str:
    """The JSON of what has no quotes.

    Raises:
        NotACall: There is nothing.
    """
    if not word:
        raise NotACall
    word = _WORDS.get(word, word)
    try:
        value = msgspec.json.decode(word)
    except (msgspec.DecodeError, UnicodeError):
        return json.dumps(word, ensure_ascii=False)
    return word if not isinstance(value, str) else json.dumps(value, ensure_ascii=False)
