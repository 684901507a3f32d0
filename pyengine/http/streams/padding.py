"""Padding of the deltas of a stream, so that their sizes tell nothing of their texts."""

import secrets

_MULTIPLE = 32


def padding(length: int) -> str:
    """Returns random characters that make ``length`` bytes a multiple of 32."""
    size = -length % _MULTIPLE
    return secrets.token_urlsafe(size)[:size]
