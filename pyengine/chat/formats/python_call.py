"""Calls as Python writes them, ``name(key="value", other=3)``, as JSON."""

import json
import re
from dataclasses import dataclass

from pyengine.chat.formats.sink import Sink
from pyengine.chat.formats.stream import NotACall, Reading, Stream
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar, sequence, text
from pyengine.grammar.listed import listed
from pyengine.grammar.parameters import Parameter, ignored_in, parameters_of

_NAME = re.compile(r"[\w.-]+")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_ATOM = re.compile(r"[-+.\w]+")
_STOPS = {quote: re.compile(f"[\\\\{quote}]") for quote in "'\""}
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "\n": "",
}
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSES = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True)
class PythonCall:
    """One call with keyword arguments.

    Arguments are generated in the tool's order of keys. Read are literals of Python and of JSON, in
    any order; a call with anything else in it is none.
    """

    def grammar(self, tool: Tool) -> Grammar:
        """As of :class:`~pyengine.chat.formats.bodies.Body`.

        Raises:
            InvalidRequestError: A strict tool's schema asks for what cannot be held to; or a
                parameter's name cannot be one in Python.
        """
        parameters = parameters_of(tool.schema, tool.strict, tool.name, tool.key_order)
        for parameter in parameters.listed:
            if not parameter.name.isidentifier():
                raise InvalidRequestError(
                    f"parameter '{parameter.name}' of tool '{tool.name}' cannot be written in this "
                    "model's format of tool calls, which is Python's"
                )
        parts = ((p.required, _one(p, tool.strict)) for p in parameters.listed)
        inner = listed(parts, ", ", tool.key_order)
        return sequence(text(f"{tool.name}("), *inner, text(")"))

    def ignored(self, tool: Tool) -> list[str]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        return ignored_in(tool.schema, values=False)

    def read(self, stream: Stream, sink: Sink) -> Reading[None]:
        """As of :class:`~pyengine.chat.formats.bodies.Body`."""
        yield from stream.space()
        name = yield from _word(stream, _NAME)
        yield from stream.literal("(")
        sink.start(name)
        stream.release()
        before = "{"
        while (yield from stream.next_of([")"])) is None:
            if before == ", ":
                yield from stream.literal(",")
                if (yield from stream.next_of([")"])):
                    break
            yield from stream.space()
            key = yield from _word(stream, _NAME)
            yield from stream.literal("=")
            sink.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            yield from _value(stream, sink)
            before = ", "
        sink.arguments("{}" if before == "{" else "}")


def _one(parameter: Parameter, strict: bool) -> Grammar:
    value = parameter.literal_grammar(strict).tagged(("argument", parameter))
    return sequence(text(f"{parameter.name}="), value)


def _word(stream: Stream, pattern: re.Pattern[str]) -> Reading[str]:
    pieces: list[str] = []
    yield from stream.run(pattern, pieces.append)
    return "".join(pieces)


def _value(stream: Stream, sink: Sink) -> Reading[None]:
    """One literal, as JSON."""
    yield from stream.space()
    first = yield from stream.peek()
    if first in "'\"":
        sink.arguments('"')
        yield from _string(stream, sink)
        sink.arguments('"')
    elif first in "[({":
        yield from _items(stream, sink, first)
    else:
        sink.arguments(_atom((yield from _word(stream, _ATOM))))


def _atom(word: str) -> str:
    """A number, or one of the words."""
    if word in _WORDS or word in _WORDS.values():
        return _WORDS.get(word, word)
    if not _NUMBER.fullmatch(word):
        raise NotACall
    try:
        value = int(word)
    except ValueError:
        made = float(word)
        if made in (float("inf"), float("-inf")):
            raise NotACall from None
        return repr(made)
    return str(value)


def _items(stream: Stream, sink: Sink, opens: str) -> Reading[None]:
    """A list, tuple or dict."""
    stream.at += 1
    closes, keyed = _CLOSES[opens], opens == "{"
    sink.arguments("{" if keyed else "[")
    count = 0
    while (yield from stream.next_of([closes])) is None:
        if count:
            yield from stream.literal(",")
            if (yield from stream.next_of([closes])):
                break
            sink.arguments(", ")
        count += 1
        if keyed:
            yield from stream.space()
            if (yield from stream.peek()) not in "'\"":
                raise NotACall
            yield from _value(stream, sink)
            yield from stream.literal(":")
            sink.arguments(": ")
        yield from _value(stream, sink)
    sink.arguments("}" if keyed else "]")


def _string(stream: Stream, sink: Sink) -> Reading[None]:
    quote = stream.text[stream.at]
    stream.at += 1
    stops = _STOPS[quote]
    while True:
        found = stops.search(stream.text, stream.at)
        end = len(stream.text) if found is None else found.start()
        if end > stream.at:
            sink.arguments(_escaped(stream.text[stream.at : end]))
            stream.at = end
        if found is None:
            yield from stream.more()
        elif found.group() == quote:
            stream.at += 1
            return
        else:
            stream.at += 1
            character = yield from _escape(stream)
            if "\ud800" <= character <= "\udbff":
                character = yield from _pair(stream, character)
            sink.arguments(_escaped(character))


def _escape(stream: Stream) -> Reading[str]:
    """The character that an escape sequence stands for, from behind its backslash."""
    kind = yield from stream.peek()
    stream.at += 1
    if kind not in _HEX:
        return _ESCAPES.get(kind, kind if kind in "\\'\"/" else "\\" + kind)
    digits = ""
    while len(digits) < _HEX[kind]:
        digits += yield from stream.peek()
        stream.at += 1
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise NotACall from None


def _pair(stream: Stream, high: str) -> Reading[str]:
    """The character of two surrogates, as JSON escapes what is beyond 16 bits."""
    yield from stream.word("\\u")
    stream.at -= 1
    low = yield from _escape(stream)
    if not "\udc00" <= low <= "\udfff":
        raise NotACall
    return (high + low).encode("utf-16", "surrogatepass").decode("utf-16")


def _escaped(piece: str) -> str:
    return json.dumps(piece, ensure_ascii=False)[1:-1]
