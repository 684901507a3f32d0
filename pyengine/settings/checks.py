"""Checks of the settings of the engine and of the endpoint."""

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pyengine.errors import ConfigError
from pyengine.validation.rules import Rule, broken

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")


def setting_types(kind: "type[DataclassInstance]") -> dict[str, Any]:
    """The type of each setting of a configuration, by name."""
    return {each.name: each.type for each in fields(kind) if not each.name.startswith("_")}


def check_types(config: "DataclassInstance") -> None:
    """Refuse a value of another type than its setting has.

    A value that the configuration's ``repr`` leaves out, as it does keys, is not shown.

    Raises:
        ConfigError: Naming the setting.
    """
    for each in fields(config):
        value = getattr(config, each.name)
        try:
            msgspec.convert(value, each.type)
        except msgspec.ValidationError as error:
            shown = f": {value!r}" if each.repr else ""
            raise ConfigError(f"'{each.name}': {error}{shown}", param=each.name) from None


def check_rules(config: C, rules: Iterable[Rule[C]]) -> None:
    """Refuse a value that is out of its range.

    Raises:
        ConfigError: Naming the setting.
    """
    if (wrong := broken(rules, config)) is not None:
        name, message = wrong
        raise ConfigError(message, param=name)


def at_least_one(name: str) -> Rule[Any]:
    """The rule of a number that must be positive where it is given."""

    def holds(config: object) -> bool:
        value = getattr(config, name)
        return value is None or value >= 1

    return Rule(name, "at least 1", holds)
