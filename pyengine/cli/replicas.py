"""``pyengine serve --replicas``: several engines behind one router, from the command line."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.grouped import GroupedCommand
from pyengine.cli.options import spelled

if TYPE_CHECKING:
    import asyncio

    from pyengine.http.replicas.replica_set import ReplicaSet
    from pyengine.settings.config import EngineConfig
    from pyengine.settings.server import ServerConfig

ARGUMENTS = "pyengine.arguments"

USELESS = {
    "root_path": "the router has its own paths; let the proxy before it take the path away",
    "allow_host": "the router takes every name",
    "uds": "the router listens on a port",
    "tls_cert": "the router speaks plain HTTP; put a proxy before it",
}
"""Settings of the server that have no effect behind a router, and why."""


class KeepsArguments(GroupedCommand):
    """A command that remembers its arguments as they were given, for processes of the same kind."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember, then parse."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def refuse(server: "ServerConfig") -> None:
    """Refuse settings that a router before the servers makes useless, and to start without one.

    Raises:
        click.UsageError: There is such a setting.
        ConfigError: smg is not installed.
    """
    from pyengine.http.replicas.router import require_router

    for setting, reason in USELESS.items():
        if getattr(server, setting):
            raise click.UsageError(
                f"{spelled(setting)} and --replicas do not go together: {reason}"
            )
    require_router()


def without(arguments: Sequence[str], flag: str) -> list[str]:
    """The arguments without ``flag`` and its value."""
    kept = []
    rest = iter(arguments)
    for argument in rest:
        if argument == flag:
            next(rest, None)
        elif not argument.startswith(f"{flag}="):
            kept.append(argument)
    return kept


async def serve_replicas(
    config: "EngineConfig",
    server: "ServerConfig",
    arguments: Sequence[str],
    say: Callable[[str], None],
    *,
    replicas: int,
    metrics_port: int | None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain, and stop everything; a second one hurries.

    Args:
        config: The configuration of every replica.
        server: Where the router listens; the rest is for every replica.
        arguments: The arguments of the command, which every replica is given too.
        say: Called with lines for the user.
        replicas: How many.
        metrics_port: Port of the metrics; None is the one after the router's.

    Raises:
        ConfigError: A port cannot be had, the GPUs are too few, or the key file cannot be read.
        EngineDeadError: No replica starts, or all of them or the router died too often.
    """
    from pyengine.http.access.door import Door
    from pyengine.http.access.source import AccessSource
    from pyengine.http.replicas.replica_set import ReplicaSet
    from pyengine.http.replicas.shares import shares
    from pyengine.http.serving.reload import reloading
    from pyengine.http.serving.server import signals
    from pyengine.model.weights.folder import served_names

    if metrics_port is None:
        metrics_port = min(server.port + 1, 65535) if server.port else 0
    source = AccessSource(server)
    door = Door(source.rules())
    running = ReplicaSet(
        arguments,
        served_names(config)[0],
        shares(config, replicas),
        server,
        metrics_port=metrics_port,
        door=door,
        announce=say,
    )
    reload = reloading(server.reloaded_files, lambda: door.apply(source.rules()))
    async with signals() as (stop, hurry), reload:
        try:
            await _run(running, stop, say)
        finally:
            await running.stop(hurry)
    say("stopped")


async def _run(running: "ReplicaSet", stop: "asyncio.Event", say: Callable[[str], None]) -> None:
    """Start the replicas, and wait for ``stop``.

    Raises:
        EngineDeadError: No replica starts, or all of them or the router died too often.
    """
    import asyncio

    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    tasks = [stopping]
    try:
        await running.start()
        say(f"listening on {running.url}, loading {running.model}")
        failed = asyncio.create_task(running.failed())
        ready = asyncio.create_task(running.ready())
        tasks += [failed, ready]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            say(summary(running))
            say(f"ready: {running.model} at {running.url}/v1")
            await asyncio.wait([stopping, failed], return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        say("draining; send the signal again to stop at once")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def summary(running: "ReplicaSet") -> str:
    """Lines that say where the metrics are, and a request to try."""
    question: Any = {"model": running.model, "messages": [{"role": "user", "content": "Hello!"}]}
    return "\n".join(
        [
            f"  metrics   {running.metrics_url}",
            f"  try       curl {running.url}/v1/chat/completions "
            "-H 'Content-Type: application/json' \\",
            f"              -d '{json.dumps(question)}'",
        ]
    )
