"""Settings in the environment: the only reader of ``PYENGINE_<NAME>`` variables."""

import os
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from pyengine.errors import ConfigError

ENVIRONMENT_PREFIX = "PYENGINE_"


def settings_from_environment(types: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that variables give, by name.

    Args:
        types: The type of each setting, by name.

    Raises:
        ConfigError: A variable does not read as its type, or names no setting.
    """
    values: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in types:
            raise ConfigError(f"{variable} names no setting; there are: {', '.join(types)}")
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


def _is_list(hint: Any) -> bool:
    """Whether a type is a tuple, or a tuple that may be left out."""
    return any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))
