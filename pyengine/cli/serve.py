"""``pyengine serve``: the OpenAI-compatible endpoint."""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.options import engine_config, engine_options, model_argument, spelled
from pyengine.cli.replicas import ARGUMENTS, KeepsArguments, refuse, serve_replicas, without
from pyengine.cli.server_options import server_config, server_options
from pyengine.cli.terminal import loading_bar
from pyengine.settings.environment import ENVIRONMENT_PREFIX
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.placement import PlacementName
    from pyengine.placement.process import ProcessPlacement
    from pyengine.request.generation_config import GenerationConfig
    from pyengine.settings.config import EngineConfig
    from pyengine.settings.server import ServerConfig

MODE: Mode = "local"
ADAPTER_FILE = "adapter_config.json"
"""A folder that has this file is an adapter's."""


@click.command(cls=KeepsArguments)
@model_argument
@click.option(
    "--placement",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Run the engine in its own process, or on a thread of the server.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Engines behind one router, each with its GPUs, or its part of the cores; needs "
    "pyengine-llm[router].",
)
@server_options
@engine_options(MODE)
def serve(
    model: str | None,
    placement: "PlacementName",
    replicas: int,
    **given: Any,
) -> None:
    """Serve a model over OpenAI's HTTP API.

    Ctrl-C or SIGTERM lets running requests finish; a second one stops at once. The exit status is 3
    if answers were broken off.
    """
    from pyengine.logs import configure, say

    model = _base(model, given)
    config, server = engine_config(model, given, MODE), server_config(given)
    configure(server.log_level, server.log_format)
    if replicas > 1:
        refuse(server)
    for warning in (*shown_keys(given), *warnings(server, replicas)):
        say(2, f"Warning: {warning}", "warning")
    if server.workers > 1 and placement == "thread" and replicas == 1:
        raise click.UsageError("more than one of --workers needs --placement process")
    begun = _begun(config, server.workers) if placement == "process" and replicas == 1 else None

    import uvloop

    from pyengine.http.serving.server import leave

    if replicas > 1:
        if len(config.served_name) > 1:
            raise click.UsageError("more than one --served-name is not for --replicas")
        os.environ.pop("PYENGINE_METRICS_PORT", None)  # the replicas' metrics are at their ports
        arguments = without(click.get_current_context().meta[ARGUMENTS], "--metrics-port")
        running = serve_replicas(
            config, server, arguments, _say, replicas=replicas, metrics_port=server.metrics_port
        )
        uvloop.run(running)
    elif server.workers == 1:
        leave(broken_off=uvloop.run(_serve(config, server, begun)))
    else:
        assert begun is not None
        leave(broken_off=uvloop.run(_serve_workers(config, server, begun)))


def shown_keys(given: Mapping[str, Any]) -> list[str]:
    """Warnings of keys among the flags that were ``given``."""
    return [
        f"everyone on this machine can read {spelled(key)} in the list of processes: "
        f"{ENVIRONMENT_PREFIX}{key.upper()}"
        f"{', or --api-key-file,' if key == 'api_key' else ''} keeps it secret"
        for key in ("api_key", "admin_key", "metrics_key")
        if given[key]
    ]


def warnings(server: "ServerConfig", replicas: int = 1) -> list[str]:
    """The dangers of a configuration."""
    from pyengine.http.access.rules import is_loopback

    found = []
    if not server.locked and server.uds is None and not is_loopback(server.host):
        found.append(
            f"everyone who reaches {server.host}:{server.port} can use the model, read /metrics "
            "and profile the engine: no --api-key-file or --api-key is given"
        )
    if "*" in server.allow_origin and not server.locked:
        found.append("every web page that a browser shows can use the model: --allow-origin is *")
    if replicas > 1 and not server.locked and is_loopback(server.host):
        found.append(
            "the router does not check by which name it is called, so web pages that browsers on "
            "this machine show may reach the model: --api-key-file or --api-key keeps them out"
        )
    return found


def _base(model: str | None, given: dict[str, Any]) -> str | None:
    """The model to serve: where an adapter's folder was named, its base, with it among the adapters
    of ``given``.
    """
    from pathlib import Path

    if model is None or not ((folder := Path(model).expanduser()) / ADAPTER_FILE).is_file():
        return model
    from pyengine.errors import AdapterError
    from pyengine.model.adapters.peft import base_of

    try:
        base = base_of(folder)
    except AdapterError as error:
        raise click.UsageError(error.message) from error
    if base is None:
        raise click.UsageError(
            f"{model} is an adapter whose configuration names no 'base_model_name_or_path': give "
            f"its model, and --adapter NAME={model}"
        )
    folder = folder.absolute()
    given["adapter"] = (*(given["adapter"] or ()), f"{folder.name}={folder}")
    return base


def _begun(config: "EngineConfig", workers: int) -> "ProcessPlacement":
    """The engine's process, which loads while this one imports the server."""
    from pyengine.model.weights.folder import is_here
    from pyengine.placement.process import ProcessPlacement

    placement = ProcessPlacement(frontends=1 if workers == 1 else workers + 1)
    if is_here(config):
        placement.begin(config)
    return placement


async def _serve(
    config: "EngineConfig", server: "ServerConfig", begun: "ProcessPlacement | None"
) -> bool:
    from pyengine.async_engine import AsyncEngine
    from pyengine.http.operations.tracing import Tracing
    from pyengine.http.serving.server import serve as serve_http

    endpoint = server.otlp_endpoint
    tracing = None if endpoint is None else Tracing.to(endpoint)
    engine = AsyncEngine(config=config, placement=begun or "thread")

    async def load(url: str) -> None:
        await _load(engine)
        _say(summary(engine, url, "process" if begun else "thread"))

    broken_off = await serve_http(engine, server, tracing=tracing, announce=_say, load=load)
    _say_stopped()
    return broken_off


async def _serve_workers(
    config: "EngineConfig", server: "ServerConfig", placement: "ProcessPlacement"
) -> bool:
    from pyengine.http.operations.tracing import Tracing
    from pyengine.http.serving.supervisor import Supervisor, serve_workers

    if server.otlp_endpoint is not None:
        Tracing.to(server.otlp_endpoint).close()  # refuse here what the workers could not use
    supervisor = Supervisor(config, server, announce=_say, placement=placement)

    async def load() -> None:
        await _load(supervisor.engine)
        _say(summary(supervisor.engine, supervisor.url, "process", server.workers))

    broken_off = await serve_workers(supervisor, load, _say)
    _say_stopped()
    return broken_off


async def _load(engine: "AsyncEngine") -> None:
    import asyncio

    from pyengine.logs import finish

    try:
        with loading_bar(engine.model_name) as progress:
            await engine.start(progress)
    except asyncio.CancelledError:
        # A signal came. The thread that reads the weights cannot be interrupted and may have
        # minutes to go; nothing is served yet, so nothing is lost by exiting.
        _say("stopped while loading")
        finish()
        os._exit(0)


def summary(engine: "AsyncEngine", url: str, placement: "PlacementName", workers: int = 1) -> str:
    """The settings of a started engine, and a request to try at ``url``."""
    config, info = engine.config, engine.info
    drafting = ", ".join(config.proposers if config.max_draft else ())
    drafting += " (where they are expected to save time)" if drafting else ""
    cache = f"{info.num_blocks} blocks of {config.block_size} tokens"
    lines = {
        "model": engine.model_name if config.model is None else config.model,
        "mode": f"{config.mode}: up to {info.max_sequences} sequences and "
        f"{info.max_tokens_per_step} tokens in a step",
        "device": f"{info.device}, engine "
        + ("in a process of its own" if placement == "process" else "on a thread")
        + (f", {workers} HTTP workers" if workers > 1 else ""),
        "context": f"{info.max_context} tokens",
        "cache": f"{cache}, prefix cache {'on' if config.prefix_cache else 'off'}",
        "sampling": _sampling(engine.generation_config),
        "drafts": drafting or "none",
        **info.notes,
    }
    curled = f"--unix-socket {url[5:]} http://localhost" if url.startswith("unix:") else url
    question = {
        "model": engine.model_name,
        "messages": [{"role": "user", "content": "Hello!"}],
    }
    return "\n".join(
        [
            *(f"  {name:<9} {value}" for name, value in lines.items()),
            f"  try       curl {curled}/v1/chat/completions -H 'Content-Type: application/json' \\",
            f"              -d '{json.dumps(question)}'",
        ]
    )


def _sampling(config: "GenerationConfig") -> str:
    """The sampling of requests that say nothing of it."""
    given = [f"{name} {value:g}" for name, value in config.given.items()]
    said = f"{', '.join(given)} by generation_config.json" if given else "as requests say"
    return said + (f"; not {', '.join(config.left_out)} of it" if config.left_out else "")


def _say_stopped() -> None:
    """The last line, which comes after those of the log."""
    from pyengine.logs import output

    output(2).finish()
    _say("stopped")


def _say(text: str) -> None:
    """A line at once, also where stdout is a file, and without waiting for its reader."""
    from pyengine.logs import say

    say(1, text)
