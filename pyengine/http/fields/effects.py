"""Effects that many fields have."""

from typing import Any

from pyengine.http.fields.policy import Hint, Refused

BOOKKEEPING = Hint("is bookkeeping; nothing is done with it.")
ONE_TIER = Hint("chooses among OpenAI's tiers of service; here there is one.")
CACHING = Hint("is a hint for a cache; here prefixes are cached by what they hold.")
ROUTING = Hint("is for a router of several servers; this server answers itself.")
ECHO = Hint("is an echo of an earlier answer; the model does not see it.")
CLIENT = Hint("is for the client's own library; the server does nothing with it.")
MEDIA = Hint("is about images and sound; the model reads text.")
NO_MEDIA = Refused("the model reads and writes text.")
ONLY_WITH = "changes nothing without '{}', which is not supported."
OFF = Refused(neutral=(False,))


def text_or_nothing(given: Any) -> Any:
    """An empty value is none."""
    return given or None


def compact(given: Any) -> Any:
    """No white space in JSON; false asks for the usual."""
    return "compact" if given is True else None if given is False else given


def limit(given: Any) -> Any:
    """A number of tokens; llama.cpp's -1 is no limit."""
    return None if given == -1 and not isinstance(given, bool) else given
