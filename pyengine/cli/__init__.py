"""The command line: one file a command.

``--help`` must be instant, so nothing here imports torch, granian or the engine before a command
runs; a test looks.
"""

import os
import sys
from typing import Any

import click

from pyengine.cli.bench import bench
from pyengine.cli.chat import chat
from pyengine.cli.complete import complete
from pyengine.cli.profile import profile
from pyengine.cli.record import record
from pyengine.cli.run_batch import run_batch
from pyengine.cli.serve import serve
from pyengine.errors import PyengineError


class Commands(click.Group):
    """A group that prints a command's PyengineError as one line, without a traceback."""

    def main(self, *arguments: Any, **keywords: Any) -> Any:
        """Run a command, with the null device for standard streams that are closed."""
        open_standard_streams()
        return super().main(*arguments, **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A PyengineError exits with 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except PyengineError as error:
            raise click.ClickException(" ".join(error.message.split())) from error
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                click.echo(err=True)  # the next output begins a new line
            ctx.exit(130)


def open_standard_streams() -> None:
    """Open the null device where stdin, stdout or stderr is closed.

    The next file or queue that is opened would have its number otherwise, and be written to.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from pyengine._core import __version__

        click.echo(f"pyengine {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """Serve large language models, or use one in the terminal.

    MODEL is a folder in Hugging Face format or a hub name; without one, each command takes the
    small demo model that comes with the package.
    """


main.add_command(serve)
main.add_command(chat)
main.add_command(complete)
main.add_command(profile)
main.add_command(record)
main.add_command(run_batch)
main.add_command(bench)
