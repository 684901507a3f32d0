"""What a conversation must be before a template renders it."""

from collections.abc import Collection, Sequence
from typing import Any

from pyengine.errors import InvalidRequestError, UnsupportedParameterError

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Sequence[Any], known: Collection[str]) -> None:
    """Refuse what a template would swallow or make nonsense of.

    Args:
        messages: Role and content each, as in OpenAI's chat completions.
        known: The keys of a message that the template reads; another one would be lost.

    Raises:
        InvalidRequestError: There is no message, or one is not what it should be; named.
    """
    if not messages:
        raise InvalidRequestError("'messages' must not be empty", param="messages")
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{at} must be a dict, not {message!r}", param=at)
        if message.get("role") not in ROLES:
            raise InvalidRequestError(
                f"{at}.role must be one of {', '.join(ROLES)}, not {message.get('role')!r}",
                param=f"{at}.role",
            )
        if message.get("content") is None and not message.get("tool_calls"):
            raise InvalidRequestError(f"{at}.content is missing", param=f"{at}.content")
        for key in message.keys() - {"role", "content", "tool_call_id", *known}:
            raise UnsupportedParameterError(
                f"{at}.{key} is not read by the model's chat template", param=f"{at}.{key}"
            )
