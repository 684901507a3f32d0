"""Readers of JSON that comes in pieces; raw text is passed on, nothing is decoded on the way.

Only the nesting is checked: what a model wrote as arguments goes to the caller as it is.
"""

import re
from collections.abc import Callable

import msgspec

from pyengine.chat.formats.stream import NotACall, Reading, Stream

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_SCALAR = re.compile(r"[-+.\w]+")
_CLOSES = {"{": "}", "[": "]"}


def value(stream: Stream, take: Callable[[str], object]) -> Reading[None]:
    """Read one value and pass its text on.

    Raises:
        NotACall: There is none, or its brackets do not match.
    """
    yield from stream.space()
    first = yield from stream.peek()
    if first in "{[":
        yield from _nested(stream, take)
    elif first == '"':
        yield from _string(stream, take)
    elif _SCALAR.match(first):
        yield from stream.run(_SCALAR, take)
    else:
        raise NotACall


def string(stream: Stream) -> Reading[str]:
    """Read one string and decode it.

    Raises:
        NotACall: There is none, or it is malformed.
    """
    yield from stream.space()
    if (yield from stream.peek()) != '"':
        raise NotACall
    pieces: list[str] = []
    yield from _string(stream, pieces.append)
    return decoded("".join(pieces))


def decoded(raw: str) -> str:
    """The string that JSON spells.

    Raises:
        NotACall: It is none.
    """
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeError):
        raise NotACall from None


def _string(stream: Stream, take: Callable[[str], object]) -> Reading[None]:
    take('"')
    stream.at += 1
    while True:
        found = _IN_STRING.search(stream.text, stream.at)
        end = len(stream.text) if found is None else found.end()
        if found is None or (found.group() == "\\" and end == len(stream.text)):
            if found is not None:
                end -= 1  # a backslash waits for the character it escapes
            take(stream.text[stream.at : end])
            stream.at = end
            yield from stream.more()
        else:
            end += found.group() == "\\"
            take(stream.text[stream.at : end])
            stream.at = end
            if found.group() == '"':
                return


def _nested(stream: Stream, take: Callable[[str], object]) -> Reading[None]:
    closers: list[str] = []
    while True:
        found = _OUTSIDE.search(stream.text, stream.at)
        if found is None:
            take(stream.text[stream.at :])
            stream.at = len(stream.text)
            yield from stream.more()
            continue
        marker = found.group()
        if marker == '"':
            take(stream.text[stream.at : found.start()])
            stream.at = found.start()
            yield from _string(stream, take)
            continue
        take(stream.text[stream.at : found.end()])
        stream.at = found.end()
        if marker in _CLOSES:
            closers.append(_CLOSES[marker])
        elif closers.pop() != marker:
            raise NotACall
        if not closers:
            return
