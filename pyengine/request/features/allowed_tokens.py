"""Allowed tokens: the answer has no others."""

from array import array
from typing import ClassVar

from pyengine.errors import InvalidRequestError
from pyengine.messages import Extension
from pyengine.request.features.feature import Asked, Feature


class AllowedTokensExtension(Extension):
    """Names the only tokens that the answer may have.

    Attributes:
        tokens: Token ids as u32 little-endian.
    """

    TAG: ClassVar[str] = "allowed_tokens"

    tokens: bytes


def _ask(asked: Asked, options: object) -> AllowedTokensExtension | None:
    allowed, vocab_size = asked.params.allowed_token_ids or (), asked.info.vocab_size
    beyond = next((token for token in allowed if token >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequestError(
            f"'allowed_token_ids' must name tokens from 0 to {vocab_size - 1}, not {beyond}",
            param="allowed_token_ids",
        )
    if not allowed:
        return None
    return AllowedTokensExtension(array("I", sorted(set(allowed))).tobytes())


FEATURE = Feature(AllowedTokensExtension, _ask)
