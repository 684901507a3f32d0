"""Checks of arguments that several parts of a request share."""

import reprlib
from array import array
from collections.abc import Sequence

from pyengine.errors import InvalidRequestError


def wrong_type(param: str, wanted: str, value: object) -> InvalidRequestError:
    """The error for an argument of the wrong type."""
    shown = reprlib.repr(value)
    return InvalidRequestError(
        f"'{param}' must be {wanted}, not {shown}", param=param, code="invalid_type"
    )


def packed(param: str, token_ids: Sequence[int], vocab_size: int) -> "array[int]":
    """Returns token ids as messages carry them, u32 each.

    Raises:
        InvalidRequestError: A value is no token id of the vocabulary; names ``param``.
    """
    if isinstance(token_ids, bytes | bytearray):
        raise wrong_type(param, "text or token ids", token_ids)
    try:
        ids = array("I", token_ids)
    except TypeError:
        raise wrong_type(param, "text or token ids", token_ids) from None
    except OverflowError:
        ids = array("I", [vocab_size])
    if ids and max(ids) >= vocab_size:
        raise InvalidRequestError(f"token ids must be from 0 to {vocab_size - 1}", param=param)
    return ids
