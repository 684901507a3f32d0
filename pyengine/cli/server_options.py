"""The flags of ``pyengine serve`` for the endpoint: those of :class:`ServerConfig`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from pyengine.cli.options import setting_flags, spelled
from pyengine.errors import ConfigError
from pyengine.settings.server import SERVER_TYPES, ServerConfig

Command = TypeVar("Command", bound=Callable[..., Any])


def server_options(command: Command) -> Command:
    """A flag for every setting of the endpoint; what was not given arrives as None."""
    return setting_flags(ServerConfig, SERVER_TYPES)(command)


def server_config(given: Mapping[str, Any]) -> ServerConfig:
    """The configuration: flags over the environment.

    Raises:
        click.UsageError: A value is out of its range; the message names the flag.
    """
    flags = {name: given[name] for name in SERVER_TYPES}
    try:
        return ServerConfig.from_environment(**flags)
    except ConfigError as error:
        where = f" (option {spelled(error.param)})" if error.param in SERVER_TYPES else ""
        raise click.UsageError(f"{error.message}{where}") from error
