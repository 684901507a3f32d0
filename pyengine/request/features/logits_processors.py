"""Logits processors: the operator's code changes the request's logits."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.messages import Extension
from pyengine.request.arguments import wrong_type
from pyengine.request.features.feature import Asked, Feature, Options

_PARAM = "logits_processors"


class LogitsProcessorsExtension(Extension):
    """Asks for logits processors of the operator.

    Attributes:
        arguments: The arguments of each, by its name: JSON.
    """

    TAG: ClassVar[str] = _PARAM

    arguments: bytes


class LogitsProcessorsKeywords(TypedDict, total=False):
    """The keyword for logits processors; see :class:`LogitsProcessorsOptions`."""

    logits_processors: Mapping[str, Mapping[str, Any]] | Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class LogitsProcessorsOptions(Options):
    """The option for logits processors.

    Attributes:
        logits_processors: Logits processors of the engine that change the request's logits, by
            name, each with its arguments; or their names alone. See
            :mod:`pyengine.logits_processors`.
    """

    logits_processors: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None


def _ask(asked: Asked, options: LogitsProcessorsOptions) -> LogitsProcessorsExtension | None:
    named, known = options.logits_processors, asked.info.logits_processors
    if not named:
        return None
    arguments = named if isinstance(named, Mapping) else {name: {} for name in named}
    for name, given in arguments.items():
        if not isinstance(given, Mapping):
            raise wrong_type(f"{_PARAM}.{name}", "an object of arguments", given)
        if name not in known:
            there = f"the engine has: {', '.join(known)}" if known else "the engine has none"
            raise InvalidRequestError(
                f"there is no logits processor {reprlib.repr(name)}; {there}. The setting "
                "'logits_processors' (--logits-processors) declares them",
                param=_PARAM,
            )
    try:
        return LogitsProcessorsExtension(msgspec.json.encode(arguments))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"'{_PARAM}' has arguments that JSON does not have: {error}", param=_PARAM
        ) from None


FEATURE = Feature(LogitsProcessorsExtension, _ask)
