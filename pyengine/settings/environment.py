"""Settings in the environment: the only reader of ``PYENGINE_<NAME>`` variables."""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec

from pyengine.errors import ConfigError

ENVIRONMENT_PREFIX = "PYENGINE_"


def check_environment(names: Collection[str]) -> None:
    """Refuse a variable that is none of the settings ``names``.

    Raises:
        ConfigError: Naming it.
    """
    for variable, name, _ in _variables():
        if name not in names:
            raise ConfigError(f"{variable} names no setting; there are: {', '.join(names)}")


def settings_from_environment(types: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that variables give, by name.

    Args:
        types: The type of each setting, by name; variables of others are left alone.

    Raises:
        ConfigError: A variable does not read as its type.
    """
    values: dict[str, Any] = {}
    for variable, name, text in _variables():
        if name not in types:
            continue
        hint = types[name]
        try:
            value = split_names(text) if _is_list(hint) else text
            values[name] = msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{variable}={text!r}: {error}", param=name) from None
    return values


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas; ``none`` is none of them."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def _variables() -> Iterator[tuple[str, str, str]]:
    """Each variable, the setting it names, and its text."""
    for variable, text in os.environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            yield variable, variable.removeprefix(ENVIRONMENT_PREFIX).lower(), text


def _is_list(hint: Any) -> bool:
    """Whether a type is a tuple, or a tuple that may be left out."""
    return any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))
