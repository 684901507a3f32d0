"""Reasoning as one opaque string, which clients send back that send nothing else of it.

It is no secret, and may stand beside the text itself. Any server of pyengine's reads it.
"""

import base64

# Before the reasoning; its form is part of the name.
_PACKED = "pyengine-reasoning-1."


def packed(reasoning: str) -> str:
    """Returns reasoning as one string."""
    return _PACKED + base64.b64encode(reasoning.encode()).decode()


def unpacked(given: str) -> str | None:
    """The reasoning in a string of :func:`packed`; None: it is none."""
    if not given.startswith(_PACKED):
        return None
    try:
        return base64.b64decode(given.removeprefix(_PACKED), validate=True).decode()
    except ValueError:
        return None
