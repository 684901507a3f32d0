"""``pyengine serve --replicas``: several engines behind one router, from the command line."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyengine.http.replicas.replica_set import ReplicaSet
    from pyengine.settings.config import EngineConfig

ARGUMENTS = "pyengine.arguments"


class KeepsArguments(click.Command):
    """A command that remembers its arguments as they were given, for processes of the same kind."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember, then parse."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


async def serve_replicas(
    config: "EngineConfig",
    arguments: Sequence[str],
    say: Callable[[str], None],
    *,
    replicas: int,
    host: str,
    port: int,
    metrics_port: int | None,
    drain_seconds: float,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain, and stop everything; a second one hurries.

    Args:
        config: Of every replica.
        arguments: Of the command, which every replica is given too.
        say: Called with lines for the user.
        replicas: How many.
        host: Address for clients, and of the metrics.
        port: Port for clients.
        metrics_port: Port of the metrics; None is the one after ``port``.
        drain_seconds: How long running requests get to finish.

    Raises:
        ConfigError: smg is not installed, a port cannot be had, or the GPUs are too few.
        EngineDeadError: No replica starts, or all of them or the router died too often.
    """
    import asyncio

    from pyengine.http.replicas.replica_set import ReplicaSet
    from pyengine.http.replicas.router import require_router
    from pyengine.http.replicas.shares import shares
    from pyengine.http.serving.server import signals
    from pyengine.model.weights.folder import served_name

    require_router()
    if metrics_port is None:
        metrics_port = min(port + 1, 65535) if port else 0
    running = ReplicaSet(
        arguments,
        config.served_name or served_name(config.model),
        shares(config, replicas),
        host=host,
        port=port,
        metrics_port=metrics_port,
        drain_seconds=drain_seconds,
        announce=say,
    )
    async with signals() as (stop, hurry):
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        try:
            await running.start()
            say(f"listening on {running.url}, loading {running.model}")
            tasks.append(asyncio.create_task(running.failed()))
            ready = asyncio.create_task(running.ready())
            tasks.append(ready)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                say(summary(running))
                say(f"ready: {running.model} at {running.url}/v1")
                await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            if tasks[1].done():
                tasks[1].result()
            say("draining; send the signal again to stop at once")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await running.stop(hurry)
    say("stopped")


def summary(running: "ReplicaSet") -> str:
    """Where the metrics are, and a request to try."""
    question: Any = {"model": running.model, "messages": [{"role": "user", "content": "Hello!"}]}
    return "\n".join(
        [
            f"  metrics   {running.metrics_url}",
            f"  try       curl {running.url}/v1/chat/completions "
            "-H 'Content-Type: application/json' \\",
            f"              -d '{json.dumps(question)}'",
        ]
    )
