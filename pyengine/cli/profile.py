"""``pyengine profile``: where the time goes, and whether the device waited for it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from pyengine.cli.attached import ask
from pyengine.cli.grouped import GroupedCommand
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
# Options of steady decode alone, those that a recording decides, and those of simulated step times.
_STEADY = {"busy_loop", "sweep", "prompt_tokens"}
_RECORDED = {"trace", "sequences", "max_tokens_per_step", "max_context"}
_STEP_TIMES = {"step_ms", "simulated_step_ms", "simulated_step_model"}


class _Grouped(GroupedCommand):
    own: ClassVar[dict[str, str]] = {
        "sequences": "Workload",
        "trace": "Traces and recordings",
        "busy_loop": "Further measurements",
        "attach": "Running servers",
        "api_key": "Running servers",
        "compare": "Reports",
    }


@click.command(cls=_Grouped, short_help="Measure where the time goes and when the device waits.")
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
@trace_options
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Replay a file of 'pyengine record', on an engine with the limits that were recorded; "
    "--device simulated takes the step times that were.",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="NAME=N,...",
    help="Replay again with other settings, such as max_sequences=512, or with replicas=2.",
)
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
    "--pyspy", is_flag=True, help="Show the Python functions below each stage; needs py-spy."
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
        if given["replay"]:
            _replay(given)
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
    if "replay" in given and (others := given & (_STEADY | _RECORDED)):
        raise click.UsageError(f"--replay does not go with {listed(others)}; see --what-if")
    if "what_if" in given and "replay" not in given:
        raise click.UsageError("--what-if needs --replay")
    check_trace_options(_STEADY)


def _replay(given: dict[str, Any]) -> None:
    """Settle the options that a recording decides, where they are not spoken."""
    from pyengine.model.step_model import first_line
    from pyengine.profiling.recording import Heading

    spoken = spoken_options()
    file = given["trace"] = given["replay"]
    if "seconds" not in spoken:
        given["seconds"] = 2 * first_line(file, Heading).seconds / given["rate_scale"] + 30
    if given["device"] == "simulated" and not spoken & _STEP_TIMES:
        given["simulated_step_model"] = str(file)


def _measure(
    model: str | None, given: dict[str, Any]
) -> "tuple[ProfileReport, Spans, list[Sample]]":
    from dataclasses import fields

    import uvloop

    from pyengine.profiling.profile import ProfileOptions
    from pyengine.profiling.profile import profile as run

    config = engine_config(model, given, MODE)
    grammar = None
    if (wanted := given["grammar"]) is not None:
        from pyengine.profiling.schemas import grammars

        grammar = (wanted, grammars(wanted))
    from pyengine.profiling.vocabulary import with_tokenizer

    names = {field.name for field in fields(ProfileOptions)} & given.keys()
    with with_tokenizer(config, given["tokenizer"]) as config:
        chosen = {name: given[name] for name in names}
        chosen.update(config=config, grammar=grammar, replay=given["replay"] is not None)
        options = ProfileOptions(**chosen)
        runs = 1 + options.busy_loop + len(options.sweep) + len(options.what_if)
        with working(f"starting an engine and measuring it for {options.seconds:g} s, {runs} x"):
            report, observation = uvloop.run(run(options))
    return report, observation.spans, observation.samples


def _attach(
    url: str, key: str | None, seconds: float
) -> "tuple[ProfileReport, Spans, list[Sample]]":
    import msgspec
    import numpy as np

    from pyengine.http.operations.debug import ProfileAnswer
    from pyengine.profiling.observe import Sample
    from pyengine.profiling.report import load_report
    from pyengine.telemetry.spans import SPAN

    with working(f"measuring {url} for {seconds:g} s"):
        path = f"/debug/profile?seconds={seconds:g}&spans=1"
        decoded = ask(url, path, key, seconds + 30, ProfileAnswer)
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
