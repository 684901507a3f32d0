"""Effects of many fields at once, by their names with spaces between."""

from typing import Any

from pyengine.http.fields.policy import Alias, Effect, Hint, Refused

Effects = dict[str, Effect]


def hint(names: str) -> Effects:
    """Fields that cannot change an answer."""
    return dict.fromkeys(names.split(), Hint())


def refused(names: str, *neutral: Any, say: str = "") -> Effects:
    """Fields that would change an answer, except by ``neutral``; ``say`` is the field to use."""
    return dict.fromkeys(names.split(), Refused(say, neutral))


def alias(**names: str) -> Effects:
    """Other names of honoured fields."""
    return {name: Alias(of) for name, of in names.items()}


def text_or_nothing(given: Any) -> Any:
    """Returns None for an empty value."""
    return given or None


def compact(given: Any) -> Any:
    """Returns the white space that vLLM's flag asks for."""
    return "compact" if given is True else None if given is False else given


def limit(given: Any) -> Any:
    """Returns a number of tokens, None for llama.cpp's -1."""
    return None if given == -1 and not isinstance(given, bool) else given
