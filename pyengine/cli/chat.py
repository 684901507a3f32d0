"""``pyengine chat``: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.grouped import GroupedCommand
from pyengine.cli.options import (
    engine_config,
    engine_options,
    model_argument,
    sampling_given,
    sampling_options,
)
from pyengine.cli.terminal import started
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.settings.config import EngineConfig

MODE: Mode = "interactive"


@click.command(cls=GroupedCommand)
@model_argument
@click.option("--system", help="Text of the system message.")
@sampling_options
@engine_options(MODE)
def chat(model: str | None, system: str | None, **given: Any) -> None:
    """Chat with a model in the terminal. Ctrl-C stops an answer, Ctrl-D exits, /help shows all.

    With input from a pipe, each line is a message, answered in order.
    """
    import asyncio

    config = engine_config(model, given, MODE)
    sampling = sampling_given(given)
    asyncio.run(_chat(config, sampling, system))


async def _chat(config: "EngineConfig", sampling: dict[str, Any], system: str | None) -> None:
    from pyengine.cli.conversation import Conversation
    from pyengine.cli.lines import PipedLines, TerminalLines
    from pyengine.request.generation_config import over

    async with started(config) as engine:
        params = over(engine.default_sampling_params, sampling)
        conversation = Conversation(engine, params, system)
        if sys.stdin.isatty() and sys.stdout.isatty():
            click.echo(f"{engine.model_name}: /help for commands, Ctrl-D to exit")
            await conversation.run(TerminalLines(conversation.commands()))
        else:
            await conversation.run(PipedLines())
