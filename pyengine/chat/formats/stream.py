"""Text that comes in pieces, and readers that wait for it.

A reader is a generator that yields where it needs more text: readers are written as if all of the
text were there, and call each other with ``yield from``. Every character is looked at a bounded
number of times: O(text) over all pieces.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(r"\s*")
_MUCH_SPACE = 1000  # characters of whitespace after which a marker is not waited for


class NotACall(Exception):
    """The text does not go on as the reader wants it."""


class CutShort(NotACall):
    """The text ends where more of a call was to come: so far it is one."""


class Markers:
    """Strings to find in a text that comes in pieces."""

    __slots__ = ("_firsts", "_longest", "_markers", "_search")

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = sorted({marker for marker in markers if marker}, key=len, reverse=True)
        self._longest = len(self._markers[0]) if self._markers else 0
        self._search = re.compile("|".join(map(re.escape, self._markers)) or r"(?!)").search
        firsts = "".join({marker[0] for marker in self._markers})
        self._firsts = re.compile(f"[{re.escape(firsts)}]" if firsts else r"(?!)").search

    def may_begin_in(self, text: str) -> bool:
        """Whether ``text`` has a character that a marker begins with."""
        return self._firsts(text) is not None

    def find(self, text: str, at: int) -> tuple[int, str | None]:
        """Where the first marker begins, and the marker; or up to where there is none for sure."""
        first = self._firsts(text, at)
        if first is None:
            return len(text), None
        found = self._search(text, first.start())
        if found is not None:
            return found.start(), found.group()
        # The text may end with the beginning of a marker.
        near = max(first.start(), len(text) - self._longest + 1)
        while (begin := self._firsts(text, near)) is not None:
            near = begin.start()
            tail = text[near:]
            if any(marker.startswith(tail) for marker in self._markers):
                return near, None
            near += 1
        return len(text), None


@lru_cache(maxsize=256)
def markers(*strings: str) -> Markers:
    """The :class:`Markers` of these strings, made once."""
    return Markers(strings)


class Stream:
    """The text so far, from where it is still of interest.

    Attributes:
        text: The text that has come and is still needed.
        at: How far it is read.
        ended: Nothing more comes.
        awaited: The markers that the reader waits for, and what takes the text before them, where
            all that came is passed on.
    """

    __slots__ = ("_gone", "_held", "at", "awaited", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.awaited: tuple[Markers, Callable[[str], object]] | None = None
        self._gone = 0  # characters before the text
        self._held: list[str] | None = None

    @property
    def position(self) -> int:
        """How many characters are read in all."""
        return self._gone + self.at

    def push(self, more: str) -> None:
        """Add what has come."""
        if self.at:
            if self._held is not None:
                self._held.append(self.text[: self.at])
            more = self.text[self.at :] + more
            self._gone += self.at
            self.at = 0
        elif self.text:
            more = self.text + more
        self.text = more

    def pass_by(self, text: str) -> None:
        """Count text as read that no reader has seen."""
        self._gone += len(text)

    def hold(self) -> None:
        """Remember what is read from here on."""
        self._gone += self.at
        self.text, self.at, self._held = self.text[self.at :], 0, []

    def held(self) -> str:
        """The text that was read since :meth:`hold`; ends the hold."""
        assert self._held is not None
        made = "".join(self._held) + self.text[: self.at]
        self._held = None
        return made

    @property
    def holding(self) -> bool:
        """Whether what is read is remembered."""
        return self._held is not None

    def release(self) -> None:
        """Forget what was held."""
        self._held = None

    def more(self) -> Reading[None]:
        """Wait for more text.

        Raises:
            CutShort: There is no more.
        """
        if self.ended:
            raise CutShort
        yield

    def peek(self) -> Reading[str]:
        """The next character, which stays."""
        while self.at >= len(self.text):
            yield from self.more()
        return self.text[self.at]

    def space(self) -> Reading[None]:
        """Pass over whitespace and wait for what follows it."""
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text):
                return
            yield from self.more()

    def comes(self, first: str) -> Reading[bool]:
        """Whether this character is the next that is no whitespace; nothing is read."""
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            if found.end() < len(self.text):
                return self.text[found.end()] == first
            if self.ended or found.end() - self.at > _MUCH_SPACE:
                return False
            yield

    def word(self, word: str) -> Reading[None]:
        """Read exactly this."""
        while len(self.text) - self.at < len(word):
            if not word.startswith(self.text[self.at :]):
                raise NotACall
            yield from self.more()
        if not self.text.startswith(word, self.at):
            raise NotACall
        self.at += len(word)

    def literal(self, literal: str) -> Reading[None]:
        """Read what a description spells, with any whitespace or none where it has some."""
        for word in literal.split():
            yield from self.space()
            yield from self.word(word)

    def next_of(self, options: Iterable[str]) -> Reading[str | None]:
        """Which option comes next after whitespace; it is read, with that. None: nothing is."""
        listed = [option for option in options if option]
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            begin = found.end()
            for option in listed:
                if self.text.startswith(option, begin):
                    self.at = begin + len(option)
                    return option
            if begin - self.at > _MUCH_SPACE:
                return None
            rest = self.text[begin : begin + max(map(len, listed), default=0)]
            if self.ended or not any(option.startswith(rest) for option in listed):
                return None
            yield

    def run(self, pattern: re.Pattern[str], take: Callable[[str], object]) -> Reading[None]:
        """Read the characters that ``pattern`` (of a class, repeated) matches, as they come."""
        while True:
            found = pattern.match(self.text, self.at)
            if found is not None and found.end() > self.at:
                take(self.text[self.at : found.end()])
                self.at = found.end()
            if self.at < len(self.text):
                return
            yield from self.more()

    def until(
        self, markers: Markers, take: Callable[[str], object], *, partial: bool = True
    ) -> Reading[str | None]:
        """Pass text on as it comes, up to a marker, which is read. None: the text ended before.

        What is passed on is read already. Where the text ends with the beginning of a marker, that
        is passed on if ``partial``.
        """
        while True:
            begin = self.at
            self.at, marker = markers.find(self.text, begin)
            if self.at > begin:
                take(self.text[begin : self.at])
            if marker is not None:
                self.at += len(marker)
                return marker
            if self.ended:
                rest, self.at = self.text[self.at :], len(self.text)
                if rest and partial:
                    take(rest)
                return None
            self.awaited = (markers, take) if self.at == len(self.text) else None
            yield
            self.awaited = None
