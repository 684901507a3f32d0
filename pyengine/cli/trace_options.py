"""The options of commands that replay a trace."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click

from pyengine.cli.options import spelled

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        help="Replay this trace: a CSV file as Azure's, a JSONL file as Mooncake's.",
    ),
    click.option(
        "--rate-scale",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        help="Replay the trace this many times as fast.",
    ),
    click.option("--limit", type=click.IntRange(1), help="Replay only the first N requests."),
    click.option("--clip", is_flag=True, help="Shorten the trace's requests to fit the context."),
)


def trace_options(command: Command) -> Command:
    """Add ``--trace``, ``--rate-scale``, ``--limit`` and ``--clip``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def spoken_options() -> set[str]:
    """The parameters of the current command that its command line gives."""
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    return {name for name in context.params if context.get_parameter_source(name) == given}


def check_trace_options(apart: Collection[str]) -> None:
    """Refuse options of traces without a trace, and those in ``apart`` with one.

    Raises:
        click.UsageError: Naming them.
    """
    given = spoken_options()
    if "trace" in given and (others := given.intersection(apart)):
        raise click.UsageError(f"--trace does not go with {listed(others)}")
    if not given & {"trace", "replay"} and (lonely := given & {"rate_scale", "limit", "clip"}):
        raise click.UsageError(f"{listed(lonely)} needs --trace")


def listed(names: Collection[str]) -> str:
    """Parameters as the command line spells them."""
    return ", ".join(spelled(name.removesuffix("_file")) for name in sorted(names))
