"""Settings in the environment: the only reader of ``PYENGINE_<NAME>`` variables."""

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

import msgspec

from pyengine.errors import ConfigError

ENVIRONMENT_PREFIX = "PYENGINE_"
log = logging.getLogger("pyengine")

# Kubernetes gives a pod the addresses of all services, under names such as PYENGINE_PORT where a
# service is called pyengine.
_OF_A_SERVICE = re.compile(
    r"PYENGINE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
_FLAGS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def check_environment(names: Collection[str]) -> None:
    """Refuse a variable that is none of the settings ``names``.

    Raises:
        ConfigError: Naming it.
    """
    for variable, name, _ in _variables():
        if name not in names:
            near = [f"{ENVIRONMENT_PREFIX}{one.upper()}" for one in get_close_matches(name, names)]
            other = f"did you mean {' or '.join(near)}?" if near else "docs/SETTINGS.md lists all"
            raise ConfigError(f"{variable} names no setting; {other}")


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
            if bool in (hint, *get_args(hint)):
                value = _FLAGS.get(text.lower(), text.lower())
            values[name] = msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            kinds = (each for each in (hint, *get_args(hint)) if get_origin(each) is Literal)
            choices = [str(each) for kind in kinds for each in get_args(kind)]
            among = f"; it may be {', '.join(choices)}" if choices else ""
            raise ConfigError(f"{variable}={text!r}: {error}{among}", param=name) from None
    return values


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas; ``none`` is none of them."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def _variables() -> Iterator[tuple[str, str, str]]:
    """Each variable, the setting it names, and its text."""
    for variable, text in os.environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if _OF_A_SERVICE.fullmatch(variable) or (
            variable.endswith("PORT") and _ADDRESS.fullmatch(text)
        ):
            log.debug("%s is passed over: Kubernetes' address of a service", variable)
        else:
            yield variable, variable.removeprefix(ENVIRONMENT_PREFIX).lower(), text


def _is_list(hint: Any) -> bool:
    """Whether a type is a tuple, or a tuple that may be left out."""
    return any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))
