"""Log-probabilities of an answer's tokens, from the records that come with its deltas.

A record is little-endian: where the token's text begins in the answer (int32, characters; -1 for a
token without text), its log-probability (float32), and pairs of a likely token (int32, -1 where
there are no more) and its log-probability.

A token is reported together with the beginning of its text. So the tokens that a stop string cut
off, the token that ended the answer and special tokens that are left out of the text are not
reported, and text and entries agree. Tokens that make up one character are reported together.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Spelling = Callable[[int], bytes]
"""The bytes of a token; empty for one that has none."""


def unspelled(token: int) -> bytes:
    """The spelling of a request without log-probabilities: no token has bytes."""
    return b""


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token that might have come, and its log-probability.

    Attributes:
        token_id: Its id.
        token: Its text; bytes that are no whole character are replaced by U+FFFD.
        bytes: Its bytes.
        logprob: Its log-probability.
    """

    token_id: int
    token: str
    bytes: bytes
    logprob: float


class TokenLogprob(TopLogprob, frozen=True, gc=False):
    """A token that came; see :class:`TopLogprob`.

    Attributes:
        text_offset: Where its text begins in the answer, in characters.
        top: The most likely tokens in its place, in order.
    """

    text_offset: int
    top: tuple[TopLogprob, ...]


class LogprobRecords:
    """The records of one request, and how many of them were reported. One thread at a time."""

    __slots__ = ("_characters", "_format", "_read", "_records", "_spelled", "_spelling")

    def __init__(self, count: int, spelling: Spelling) -> None:
        """``count`` likely tokens for each token, spelled by ``spelling``."""
        self._spelling = spelling
        self._spelled: dict[int, tuple[str, bytes]] = {}  # cached by token id
        self._format = struct.Struct("<if" + "if" * count)
        self._records = bytearray()
        self._characters = 0  # of the text that was reported
        self._read = 0  # records that were reported, or never will be

    def add(self, tokens: Sequence[int], records: bytes) -> None:
        """Take in the records that came with ``tokens``."""
        size = self._format.size
        if len(records) != len(tokens) * size:
            raise ValueError(f"{len(records)} bytes are no records of {len(tokens)} tokens")
        for at, token in enumerate(tokens):
            self._records += token.to_bytes(4, "little")
            self._records += records[at * size : (at + 1) * size]

    @property
    def count(self) -> int:
        """Records that came."""
        return len(self._records) // (4 + self._format.size)

    def add_next(self, tokens: Sequence[int], records: bytes) -> None:
        """Take in records of those of all ``tokens`` that follow the ones that came."""
        first = self.count
        self.add(tokens[first : first + len(records) // self._format.size], records)

    def report(self, text: str) -> tuple[TokenLogprob, ...]:
        """The tokens whose text begins in ``text``, which follows all text before."""
        self._characters += len(text)
        found, self._read = self._between(self._read)
        return found

    def whole(self) -> tuple[TokenLogprob, ...]:
        """All tokens that were reported."""
        return self._between(0)[0]

    def every(self) -> tuple[TokenLogprob, ...]:
        """All tokens that came, whether they have text or not; a place of -1 is none."""
        size, found = 4 + self._format.size, []
        for at in range(0, len(self._records), size):
            token = int.from_bytes(self._records[at : at + 4], "little")
            place, logprob, *pairs = self._format.unpack_from(self._records, at + 4)
            found.append(self._entry(token, place, logprob, pairs))
        return tuple(found)

    def _between(self, first: int) -> tuple[tuple[TokenLogprob, ...], int]:
        size = 4 + self._format.size
        found, at = [], first
        while (at + 1) * size <= len(self._records):
            token = int.from_bytes(self._records[at * size : at * size + 4], "little")
            place, logprob, *pairs = self._format.unpack_from(self._records, at * size + 4)
            if place >= self._characters:
                break
            at += 1
            if place >= 0:
                found.append(self._entry(token, place, logprob, pairs))
        return tuple(found), at

    def _entry(self, token: int, place: int, logprob: float, pairs: list[Any]) -> TokenLogprob:
        top = tuple(
            TopLogprob(other, *self._spell(other), likely)
            for other, likely in zip(pairs[::2], pairs[1::2], strict=True)
            if other >= 0
        )
        return TokenLogprob(token, *self._spell(token), logprob, place, top)

    def _spell(self, token: int) -> tuple[str, bytes]:
        spelled = self._spelled.get(token)
        if spelled is None:
            spelling = self._spelling(token)
            spelled = self._spelled[token] = (spelling.decode("utf-8", "replace"), spelling)
        return spelled
