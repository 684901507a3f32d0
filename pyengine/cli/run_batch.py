"""``pyengine run-batch``: the requests of a file, answered into another."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.grouped import GroupedCommand
from pyengine.cli.options import engine_config, engine_options, model_argument
from pyengine.cli.terminal import started
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.http.batches.offline import Counts, OfflineBatch
    from pyengine.settings.config import EngineConfig

MODE: Mode = "server"
# The engine has a request at hand whenever one ends.
_AHEAD = 2


@click.command(name="run-batch", cls=GroupedCommand)
@model_argument
@click.option(
    "-i",
    "--input-file",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Requests, a line of JSON each: custom_id, method, url, body.",
)
@click.option(
    "-o",
    "--output-file",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Output file in JSONL, in order of completion; existing lines are kept, so a run resumes.",
)
@engine_options(MODE)
def run_batch(model: str | None, source: Path, target: Path, **given: Any) -> None:
    """Answer the requests of a file in OpenAI's batch format.

    A run that was killed goes on where it was: the same command answers what the output lacks.
    The endpoints are those of `pyengine serve`, such as /v1/chat/completions.
    """
    import uvloop

    from pyengine.http.batches.offline import OfflineBatch

    config = engine_config(model, given, MODE)
    with OfflineBatch(source, target) as batch:
        if batch.counts.before < batch.counts.total:
            uvloop.run(_run(config, batch))
    counts = batch.counts
    click.echo(
        f"{target}: {counts.total} answers, {counts.before} of them of earlier runs; "
        f"{counts.failed} of this run failed",
        err=True,
    )


async def _run(config: "EngineConfig", batch: "OfflineBatch") -> None:
    from pyengine.http.app import App
    from pyengine.http.limits import Limits
    from pyengine.http.store.store import Store, StoreLimits

    async with started(config) as engine:
        app = App(engine, Limits(), store=Store(StoreLimits(most_bytes=0)))
        with _progress(batch.counts) as progress:
            await batch.run(app, _AHEAD * config.limits.max_sequences, progress)


@contextmanager
def _progress(counts: "Counts") -> Iterator[Callable[["Counts"], None]]:
    """A progress bar on stderr; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("answered"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=counts.total, completed=counts.before)

    def progress(now: "Counts") -> None:
        failed = f"{now.failed} failed" if now.failed else ""
        bar.update(task, completed=now.before + now.answered, description=failed)

    with bar:
        yield progress
