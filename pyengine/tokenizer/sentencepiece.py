"""Reads SentencePiece's tokenizer.model, which is a message of protocol buffers
(sentencepiece_model.proto in https://github.com/google/sentencepiece).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyengine.tokenizer.pieces import Pieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BYTE_PAIRS = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Model:
    """What a tokenizer.model says.

    Attributes:
        pieces: The vocabulary.
        kinds: The kind of each piece.
        bos: The id of the piece that begins texts; None: there is none.
    """

    pieces: Pieces
    kinds: list[int]
    bos: int | None


def read_model(data: bytes) -> Model:
    """The model in a tokenizer.model.

    Raises:
        ValueError: It is none, or of a kind that is not supported.
    """
    tokens, scores, kinds = [], [], []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(value))
            tokens.append(str(piece[1], "utf-8"))
            scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            kinds.append(int(piece.get(3, NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    kind = trainer.get(3, UNIGRAM)
    if not tokens or kind not in (UNIGRAM, BYTE_PAIRS):
        raise ValueError("it is no SentencePiece model of unigrams or byte pairs")
    if trainer.get(24, 0):
        raise ValueError("pieces with spaces behind words are not supported")
    if not normalizer.get(5, 1):
        raise ValueError("spaces that are not escaped are not supported")
    unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else None
    # Control pieces are never found in text, and those that are unused are not either.
    pieces = Pieces(
        tokens,
        scores,
        unknown,
        unigram=kind == UNIGRAM,
        byte_fallback=bool(trainer.get(35, 0)),
        space_before=bool(normalizer.get(3, 1)),
        one_space=bool(normalizer.get(4, 1)),
        folding=bytes(normalizer.get(2, b"")),
    )
    bos = _signed(trainer.get(41, 1))
    return Model(pieces, kinds, bos if 0 <= bos < len(tokens) else None)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: their numbers and values, messages and texts as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
        else:
            raise ValueError("it is no message of protocol buffers")
        if at + size > len(data):
            raise ValueError("it ends within a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("it ends within a number")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
