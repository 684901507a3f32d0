"""``pyengine serve``: the OpenAI-compatible endpoint."""

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.options import engine_config, engine_options, model_argument
from pyengine.cli.replicas import ARGUMENTS, KeepsArguments, serve_replicas
from pyengine.cli.terminal import loading_bar
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.http.limits import Limits
    from pyengine.placement import PlacementName
    from pyengine.settings.config import EngineConfig

MODE: Mode = "local"


@click.command(cls=KeepsArguments)
@model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests get to finish when the server stops.",
)
@click.option(
    "--placement",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Run the engine in its own process, or on a thread of the server.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="HTTP processes that share the port and the engine.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Engines behind one router, each with its GPUs, or its part of the cores; needs "
    "pyengine[router].",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port of /metrics with --replicas [default: the one after --port].",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    help="Send a span of every request to this OpenTelemetry collector, as http://localhost:4318; "
    "needs pyengine[otel].",
)
@click.option("--page/--no-page", default=True, help="Serve a page to chat at / [default: yes].")
@engine_options(MODE)
def serve(
    model: str | None,
    host: str,
    port: int,
    drain_seconds: float,
    placement: "PlacementName",
    workers: int,
    replicas: int,
    metrics_port: int | None,
    otlp_endpoint: str | None,
    page: bool,
    **given: Any,
) -> None:
    """Serve a model over OpenAI's HTTP API.

    Ctrl-C or SIGTERM lets running requests finish; a second one stops at once. The exit status is 3
    if answers were broken off.
    """
    import uvloop

    from pyengine.http.limits import Limits
    from pyengine.http.serving.server import leave

    config = engine_config(model, given, MODE)
    limits = Limits(drain_seconds=drain_seconds, page=page)
    if replicas > 1:
        uvloop.run(
            serve_replicas(
                config,
                click.get_current_context().meta[ARGUMENTS],
                _say,
                replicas=replicas,
                host=host,
                port=port,
                metrics_port=metrics_port,
                drain_seconds=drain_seconds,
            )
        )
    elif workers == 1:
        leave(broken_off=uvloop.run(_serve(config, host, port, limits, placement, otlp_endpoint)))
    elif placement == "process":
        leave(
            broken_off=uvloop.run(
                _serve_workers(config, host, port, limits, workers, otlp_endpoint)
            )
        )
    else:
        raise click.UsageError("more than one of --workers needs --placement process")


async def _serve(
    config: "EngineConfig",
    host: str,
    port: int,
    limits: "Limits",
    placement: "PlacementName",
    otlp_endpoint: str | None,
) -> bool:
    from pyengine.async_engine import AsyncEngine
    from pyengine.http.operations.tracing import Tracing
    from pyengine.http.serving.server import serve as serve_http

    tracing = None if otlp_endpoint is None else Tracing.to(otlp_endpoint)
    engine = AsyncEngine(config=config, placement=placement)

    async def load(url: str) -> None:
        await _load(engine)
        _say(summary(engine, url, placement))

    broken_off = await serve_http(
        engine,
        host=host,
        port=port,
        limits=limits,
        tracing=tracing,
        announce=_say,
        load=load,
    )
    _say("stopped")
    return broken_off


async def _serve_workers(
    config: "EngineConfig",
    host: str,
    port: int,
    limits: "Limits",
    workers: int,
    otlp_endpoint: str | None,
) -> bool:
    from pyengine.http.operations.tracing import Tracing
    from pyengine.http.serving.supervisor import Supervisor, serve_workers

    if otlp_endpoint is not None:
        Tracing.to(otlp_endpoint).close()  # refuse here what the workers could not use
    supervisor = Supervisor(
        config,
        workers,
        host=host,
        port=port,
        limits=limits,
        otlp_endpoint=otlp_endpoint,
        announce=_say,
    )

    async def load() -> None:
        await _load(supervisor.engine)
        _say(summary(supervisor.engine, supervisor.url, "process", workers))

    broken_off = await serve_workers(supervisor, load, _say)
    _say("stopped")
    return broken_off


async def _load(engine: "AsyncEngine") -> None:
    import asyncio

    try:
        with loading_bar(engine.model_name) as progress:
            await engine.start(progress)
    except asyncio.CancelledError:
        # A signal came. The thread that reads the weights cannot be interrupted and may have
        # minutes to go; nothing is served yet, so nothing is lost by exiting.
        _say("stopped while loading")
        sys.stderr.flush()
        os._exit(0)


def summary(engine: "AsyncEngine", url: str, placement: "PlacementName", workers: int = 1) -> str:
    """The settings of a started engine, and a request to try at ``url``."""
    config, limits, info = engine.config, engine.config.limits, engine.info
    drafting = ", ".join(config.proposers if config.max_draft else ())
    drafting += " (where they are expected to save time)" if drafting else ""
    cache = f"{info.num_blocks} blocks of {config.block_size} tokens"
    lines = {
        "model": engine.model_name if config.model is None else config.model,
        "mode": f"{config.mode}: up to {limits.max_sequences} sequences and "
        f"{limits.max_tokens_per_step} tokens in a step",
        "device": f"{info.device}, engine "
        + ("in a process of its own" if placement == "process" else "on a thread")
        + (f", {workers} HTTP workers" if workers > 1 else ""),
        "context": f"{info.max_context} tokens",
        "cache": f"{cache}, prefix cache {'on' if config.prefix_cache else 'off'}",
        "drafts": drafting or "none",
        **info.notes,
    }
    question = {
        "model": engine.model_name,
        "messages": [{"role": "user", "content": "Hello!"}],
    }
    return "\n".join(
        [
            *(f"  {name:<9} {value}" for name, value in lines.items()),
            f"  try       curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
            f"              -d '{json.dumps(question)}'",
        ]
    )


def _say(text: str) -> None:
    """A line at once, also where stdout is a file."""
    click.echo(text)
    sys.stdout.flush()
