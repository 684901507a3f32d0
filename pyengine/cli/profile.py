"""``pyengine profile``: where the time goes, and whether the device waited for it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.options import engine_config, engine_options, model_argument, numbers_of
from pyengine.cli.terminal import working
from pyengine.cli.trace_options import (
    check_trace_options,
    listed,
    spoken_options,
    trace_options,
)
from pyengine.settings.modes import Mode

if TYPE_CHECKING:
    from pyengine.profiling.observe import Sample
    from pyengine.profiling.report import ProfileReport
    from pyengine.telemetry.spans import Spans

MODE: Mode = "server"


@click.command(short_help="Measure where the time goes and when the device waits.")
@model_argument
@click.option(
    "--sequences",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Sequences that run at once; with --trace, the most that do.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long to measure; a trace that takes longer is cut off.",
)
@click.option("--step-ms", type=click.FloatRange(min=0), help="Short for --simulated-step-ms.")
@click.option(
    "--placement",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Run the engine in its own process, or on a thread of this one.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Length of every prompt.",
)
@trace_options
@click.option(
    "--busy-loop", is_flag=True, help="Measure again while this process computes half of the time."
)
@click.option(
    "--sweep",
    callback=numbers_of("sequences, such as 16,64,256"),
    metavar="N,N,...",
    help="Measure again with each of these numbers of sequences.",
)
@click.option(
    "--grammar",
    metavar="FILE|NAME",
    help="Constrain every answer by a JSON Schema in a file, or a built-in one: records, tools, "
    "mixed (50 schemas in turn).",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Use the tokens of this tokenizer.json, on the simulated device.",
)
@click.option("--attach", metavar="URL", help="Measure a running server instead.")
@click.option(
    "--api-key",
    envvar="PYENGINE_PROFILE_API_KEY",
    help="Key of the server of --attach: its --metrics-key.",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A.json B.json",
    help="Show what changed between two reports, without measuring.",
)
@click.option("--explain", is_flag=True, help="Say below the table what each stage is.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout.")
@click.option(
    "--perfetto", metavar="FILE", help="Write the spans for ui.perfetto.dev; - is stdout."
)
@click.option("--html", metavar="FILE", help="Write a page with plots; - is stdout.")
@engine_options(MODE)
def profile(
    model: str | None,
    attach: str | None,
    api_key: str | None,
    explain: bool,
    compare: tuple[Path, Path] | None,
    json_file: str | None,
    perfetto: str | None,
    html: str | None,
    step_ms: float | None,
    **given: Any,
) -> None:
    """Measure where the time goes in steady decode, in a trace, or in a running server.

    A stage's time is exposed while the device has nothing to do, else overlapped. With
    --device simulated, everything but the device is real:

        pyengine profile --device simulated --step-ms 8 --html profile.html
    """
    _refuse_what_would_be_ignored()
    if compare is not None:
        _compare(*compare)
        return
    if attach is not None:
        report, spans, samples = _attach(attach, api_key, given["seconds"])
    else:
        if step_ms is not None:
            given["simulated_step_ms"] = step_ms
        report, spans, samples = _measure(model, given | {"sampled": perfetto is not None})
    _write(report, spans, samples, json_file, perfetto, html, explain=explain)


def _refuse_what_would_be_ignored() -> None:
    """Raises click.UsageError for options that do not go together."""
    given = spoken_options()
    outputs = {"json_file", "perfetto", "html", "explain"}
    if "max_sequences" in given:
        raise click.UsageError("use --sequences in place of --max-sequences here")
    for mode, others in [
        ("compare", given - {"compare"}),
        ("attach", given - outputs - {"attach", "seconds", "api_key"}),
    ]:
        if mode in given and others:
            raise click.UsageError(f"--{mode} does not go with {listed(others)}")
    check_trace_options({"busy_loop", "sweep", "prompt_tokens"})


def _measure(
    model: str | None, given: dict[str, Any]
) -> "tuple[ProfileReport, Spans, list[Sample]]":
    import uvloop

    from pyengine.profiling.profile import ProfileOptions
    from pyengine.profiling.profile import profile as run

    names = (
        "placement", "sequences", "seconds", "prompt_tokens", "trace", "rate_scale", "limit",
        "clip", "busy_loop", "sampled", "sweep",
    )  # fmt: skip
    config = engine_config(model, given, MODE)
    grammar = None
    if (wanted := given["grammar"]) is not None:
        from pyengine.profiling.schemas import grammars

        grammar = (wanted, grammars(wanted))
    from pyengine.profiling.vocabulary import with_tokenizer

    with with_tokenizer(config, given["tokenizer"]) as config:
        options = ProfileOptions(
            config=config, grammar=grammar, **{name: given[name] for name in names}
        )
        runs = 1 + options.busy_loop + len(options.sweep)
        with working(f"starting an engine and measuring it for {options.seconds:g} s, {runs} x"):
            report, observation = uvloop.run(run(options))
    return report, observation.spans, observation.samples


def _attach(
    url: str, key: str | None, seconds: float
) -> "tuple[ProfileReport, Spans, list[Sample]]":
    import urllib.error
    import urllib.request

    import msgspec
    import numpy as np

    from pyengine.errors import ConfigError
    from pyengine.http.operations.debug import ProfileAnswer
    from pyengine.profiling.observe import Sample
    from pyengine.profiling.report import load_report
    from pyengine.telemetry.spans import SPAN

    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--attach takes a URL: http://HOST:PORT")
    address = f"{url.rstrip('/').removesuffix('/v1')}/debug/profile?seconds={seconds:g}&spans=1"
    request = urllib.request.Request(
        address, headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    try:
        with (
            working(f"measuring {url} for {seconds:g} s"),
            urllib.request.urlopen(request, timeout=seconds + 30) as answer,
        ):
            body = answer.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConfigError(f"cannot measure {url}: {error}") from error
    try:
        decoded = msgspec.json.decode(body, type=ProfileAnswer)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{url} does not answer as a pyengine server: {error}") from error
    report = load_report(bytes(decoded.report), url)
    samples = msgspec.json.decode(decoded.samples, type=list[Sample])
    return report, np.frombuffer(decoded.spans, SPAN), samples


def _compare(old: Path, new: Path) -> None:
    from rich.console import Console

    from pyengine.errors import ConfigError
    from pyengine.profiling.report import load_report
    from pyengine.profiling.table import comparison

    try:
        reports = [load_report(path.read_bytes(), str(path)) for path in (old, new)]
    except OSError as error:
        raise ConfigError(f"cannot read a report: {error}") from None
    Console().print(comparison(*reports))


def _write(
    report: "ProfileReport",
    spans: "Spans",
    samples: "list[Sample]",
    json_file: str | None,
    perfetto: str | None,
    html: str | None,
    *,
    explain: bool,
) -> None:
    import msgspec
    from rich.console import Console

    from pyengine.profiling.page import page
    from pyengine.profiling.perfetto import trace
    from pyengine.profiling.table import explained, table

    wanted: list[tuple[str | None, Callable[[], bytes]]] = [
        (json_file, lambda: msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"),
        (perfetto, lambda: trace(spans, samples)),
        (html, lambda: page(report).encode()),
    ]
    for target, make in wanted:
        if target == "-":
            sys.stdout.buffer.write(make())
            sys.stdout.flush()
        elif target is not None:
            Path(target).write_bytes(make())
    if not any(target == "-" for target, _ in wanted):
        console = Console()
        console.print(table(report))
        if explain:
            console.print()
            console.print(explained(report))
