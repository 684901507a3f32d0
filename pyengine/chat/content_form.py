"""Whether a chat template reads a message's content as a text, as a list of parts, or as both.

A template that was given what it does not read would lose a message in silence, or write a list as
Python or JSON spells it. What one reads is found by rendering short conversations, for each role
apart, the first time that a message of the role comes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyengine.errors import InvalidRequestError

Messages = list[dict[str, Any]]
Render = Callable[[Messages], str]
"""Renders a conversation; raises :class:`InvalidRequestError` where the template refuses it."""

_FIRST, _SECOND = "first-part-of-content", "second-part-of-content"
_USER = {"role": "user", "content": "Hello!"}
_CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {}}}
    ],
}


class ContentForms:
    """The forms of content that a template reads, by role. Any thread may use it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._reads_text: dict[str, bool] = {}
        self._reads_parts: dict[str, int] = {}

    def content(self, role: str, given: str | Sequence[str]) -> Any:
        """What the template gets as the content of a message.

        Parts stay parts where the template reads several; else they become one text, line by line,
        as they do in vLLM. A text becomes a part where the template reads parts alone.

        Args:
            role: The message's, as the template gets it.
            given: Its text, or the texts of its parts.
        """
        texts = [given] if isinstance(given, str) else list(given)
        if isinstance(given, str) and self._takes_text(role):
            return given
        most = self._takes_parts(role)
        if len(texts) <= most:
            return _parts(*texts)
        joined = "\n".join(texts)
        return _parts(joined) if most and not self._takes_text(role) else joined

    def _takes_text(self, role: str) -> bool:
        if role not in self._reads_text:
            # A template that wants another conversation than the short ones is asked to read texts.
            made = self._made(role, _FIRST)
            self._reads_text[role] = made is None or _FIRST in made
        return self._reads_text[role]

    def _takes_parts(self, role: str) -> int:
        """How many parts the template reads: none, one, or any number."""
        if role not in self._reads_parts:
            several = self._reads(role, _FIRST, _SECOND)
            one = several or self._reads(role, _FIRST)
            self._reads_parts[role] = 1 << 30 if several else int(one)
        return self._reads_parts[role]

    def _reads(self, role: str, *texts: str) -> bool:
        """Whether the template writes parts of these texts, and nothing around them that it would
        not write around a text.
        """
        made = self._made(role, _parts(*texts))
        if made is None:
            return False
        if not self._takes_text(role):
            places = [made.find(text) for text in texts]
            spelled = any(word in made for word in ("'text'", '"text"'))
            return -1 not in places and places == sorted(places) and not spelled
        before, _, behind = (self._made(role, _FIRST) or "").partition(_FIRST)
        return made.startswith(before + texts[0]) and made.endswith(texts[-1] + behind)

    def _made(self, role: str, content: Any) -> str | None:
        """A short conversation with this content; None where the template refuses it."""
        message: dict[str, Any] = {"role": role, "content": content}
        match role:
            case "user":
                conversation = [message]
            case "assistant":
                conversation = [_USER, message, _USER]
            case "tool":
                conversation = [_USER, _CALLS, message | {"tool_call_id": "call00000"}]
            case _:
                conversation = [message, _USER]
        try:
            return self._render(conversation)
        except InvalidRequestError:
            return None


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]
