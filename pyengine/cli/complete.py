"""``pyengine complete``: one completion, or one answer, on stdout."""

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
from pyengine.cli.terminal import show, started
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.chat.answer import ChatAnswer
    from pyengine.chat.generation import ChatGeneration
    from pyengine.completion import Completion
    from pyengine.request.generation import Generation
    from pyengine.settings.config import EngineConfig

MODE: Mode = "interactive"


@click.command(cls=GroupedCommand)
@model_argument
@click.option("-p", "--prompt", help="The text to continue [default: read from stdin].")
@click.option("--chat", is_flag=True, help="Answer the prompt as a chat message.")
@click.option("--system", help="Text of the system message, with --chat.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: model, text, finish_reason, usage, and reasoning if any.",
)
@sampling_options
@engine_options(MODE)
def complete(
    model: str | None,
    prompt: str | None,
    chat: bool,
    system: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Print the continuation of a text, or with --chat the answer to it.

    The text comes from --prompt, or from stdin:

        echo "What is the capital of France?" | pyengine complete --chat
    """
    import asyncio

    if system is not None and not chat:
        raise click.UsageError("--system needs --chat")
    config = engine_config(model, given, MODE)
    sampling = sampling_given(given)
    messages = [{"role": "system", "content": system}] if system is not None else []
    text = _from_stdin() if prompt is None else prompt
    question = [*messages, {"role": "user", "content": text}] if chat else text
    asyncio.run(_complete(config, question, sampling, as_json))


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("give a text with --prompt TEXT, or through a pipe")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the text on stdin is not UTF-8: {error}") from error


async def _complete(
    config: "EngineConfig",
    question: str | list[dict[str, str]],
    sampling: dict[str, Any],
    as_json: bool,
) -> None:
    from pyengine.request.generation_config import over

    async with started(config) as engine:
        params = over(engine.default_sampling_params, sampling)
        generation: Generation | ChatGeneration
        if isinstance(question, str):
            generation = engine.generate(question, params)
        else:
            generation = engine.chat(question, params)
        if as_json:
            click.echo(_as_json(engine.model_name, await generation))
            return
        async for update in generation:
            show(update.text)
        click.echo()


def _as_json(model: str, completion: "Completion | ChatAnswer") -> str:
    """The completion with its usage, as over HTTP: what was drafted is in its details."""
    import msgspec

    from pyengine.http.openai.schema.common import usage_object

    answer: dict[str, Any] = {
        "model": model,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": usage_object([completion.usage]),
    }
    if reasoning := getattr(completion, "reasoning", ""):
        answer["reasoning"] = reasoning
    return msgspec.json.encode(answer).decode()
