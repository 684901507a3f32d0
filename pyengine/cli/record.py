"""``pyengine record``: what a server was asked for, to be replayed."""

from pathlib import Path

import click

from pyengine.cli.attached import ask
from pyengine.cli.terminal import working


@click.command(short_help="Record what a server is asked for, without text, to replay it.")
@click.argument("url")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="How long; Ctrl-C ends it earlier, and writes what there is.",
)
@click.option(
    "--api-key", envvar="PYENGINE_PROFILE_API_KEY", help="Key of the server: its --metrics-key."
)
def record(url: str, file: Path, seconds: float, api_key: str | None) -> None:
    """Record the requests of the server at URL to FILE, for pyengine profile --replay.

    FILE gets their lengths, times, priorities, sampling parameters and equal beginnings, and how
    long the device took for steps. It has neither text nor tokens.
    """
    import time

    from pyengine.profiling.observe import PERIOD_S
    from pyengine.profiling.recording import RecordAnswer, Recording

    def take(path: str) -> RecordAnswer:
        return ask(url, path, api_key, 30, RecordAnswer)

    recording = Recording(take("/debug/record"))
    end = time.monotonic() + seconds
    try:
        with working(f"recording {url} for {seconds:g} s; Ctrl-C ends it"):
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, PERIOD_S))
                recording.add(take(recording.path))
    except KeyboardInterrupt:
        recording.add(take(recording.path))
    finally:
        with file.open("wb") as lines:
            lines.writelines(recording.lines())
    click.echo(f"{file}: {recording.summary()}")
