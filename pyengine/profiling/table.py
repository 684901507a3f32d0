"""Reports in the terminal: one profile, or two side by side."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyengine._core import Stage
from pyengine.profiling.report import ProfileReport, StageRow
from pyengine.profiling.windows import WINDOWS, Interval
from pyengine.telemetry.host import HostUse

# Not work: shown, but not added up.
WAITS = ("copy_back", "idle", "device")
WAITING_TRACKS = ("request", "loop")


# A wait that the reader of a stream notices.
LONG_WAIT_MS = 100.0


def table(report: ProfileReport) -> RenderableType:
    """The report as text for the terminal."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    rows.add_column("track", no_wrap=True)
    rows.add_column("stage", no_wrap=True)
    for name in (
        "count",
        "exposed\nms",
        "overlapped\nms",
        "tokens\nwaited ms",
        "µs per\nstep",
        "share",
    ):
        rows.add_column(name, justify="right")
    before = None
    for row in report.stages:
        rows.add_row(
            row.track if row.track != before else "",
            row.stage,
            f"{row.count:,}",
            _exposed(row),
            f"{row.overlapped_s * 1e3:,.2f}",
            _kept(report, row),
            f"{row.us_per_step:,.1f}",
            "" if _is_wait(row.track, row.stage) else f"{row.share:.2%}",
            style="dim" if _is_wait(row.track, row.stage) else "",
        )
        before = row.track
    parts: list[RenderableType] = [_headline(report), Text(), rows, Text(), *_notes(report)]
    for points, shown in (
        (report.sweep, _sweep), (report.replays, _replays), (report.flames, _flames),
    ):  # fmt: skip
        parts += [Text(), shown(report)] if points else []
    return Group(*parts)


def columns(first: str, names: Iterable[str]) -> Table:
    """A table without rows: a column of labels, and one of numbers for each name."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows.add_column(first)
    for name in names:
        rows.add_column(name, justify="right", overflow="fold")
    return rows


def explained(report: ProfileReport) -> RenderableType:
    """A line for each stage of the report that says what it is."""
    lines = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    there = {row.stage for row in report.stages}
    for stage in Stage.all():
        if stage.label in there:
            lines.add_row(stage.label, Text(stage.meaning, style="dim"))
    return lines


def _is_wait(track: str, stage: str) -> bool:
    return stage in WAITS or track in WAITING_TRACKS


def _exposed(row: StageRow) -> Text:
    milliseconds = row.exposed_s * 1e3
    style = "yellow" if milliseconds >= 0.01 and not _is_wait(row.track, row.stage) else ""
    return Text(f"{milliseconds:,.2f}", style=style)


def _kept(report: ProfileReport, row: StageRow) -> Text:
    """How long tokens waited while the stage kept them from their readers."""
    waits = report.token_waits
    if waits is None or row.track not in ("detokenizer", "frontend", "loop"):
        return Text()
    if row.stage not in waits.causes or (row.track, row.stage) == ("detokenizer", "message"):
        return Text()
    milliseconds = waits.causes[row.stage]
    return Text(f"{milliseconds:,.2f}", style="yellow" if milliseconds >= LONG_WAIT_MS else "")


def _headline(report: ProfileReport) -> Text:
    if not report.steps:
        return Text("nothing ran on the device meanwhile", style="bold")
    text = Text()
    text.append(f"{report.exposed_cpu_ratio:.3%}", style="bold green")
    text.append(" of the device's time was lost to the CPU")
    if report.exposed_cpu_ratio_busy_loop is not None:
        text.append(f" ({report.exposed_cpu_ratio_busy_loop:.3%} beside a busy loop)")
    step = report.step_ms
    text.append(
        f"\n{report.tokens_per_second:,.0f} tokens/s, {report.steps:,} steps of {step.mean:.3f} ms "
        f"(p50 {step.p50:.3f}, p99 {step.p99:.3f}, longest {step.max:.3f})"
    )
    if (waits := report.token_waits) is not None:
        reasons = ", ".join(f"{cause} {ms:,.1f} ms" for cause, ms in list(waits.causes.items())[:3])
        text.append(
            f"\ntokens waited for the frontend: p50 {waits.p50:,.3f} ms, p99 {waits.p99:,.3f}, "
            f"longest {waits.longest:,.3f}; because of {reasons}"
        )
    return text


def _notes(report: ProfileReport) -> list[Text]:
    cost = report.recorder
    lost = f", {cost.lost:,} lost" if cost.lost else ""
    notes = [
        f"recorder: {cost.spans:,} spans at {cost.span_ns:.0f} ns, {cost.share:.4%} of the time"
        f"{lost}; not accounted for: {report.unaccounted_ratio:.3%}"
    ]
    if report.host is not None:
        notes.append(_host(report, report.host))
    if "requests" in report.setup:
        clipped = report.setup["clipped"]
        notes.append(
            f"{report.setup['workload']}: {report.setup['answered']:,} of "
            f"{report.setup['requests']:,} requests answered"
            + (f", {clipped:,} clipped to the context" if clipped else "")
        )
    if report.cached_share is not None and report.ideal_cached_share is not None:
        notes.append(
            f"prefix cache: {report.cached_share:.1%} of the prompts' tokens; an ideal one of the "
            f"same size {report.ideal_cached_share:.1%}"
        )
    for name, latency in (
        ("wait in the queue", report.queue_wait_ms),
        ("first token", report.first_token_ms),
        ("next token", report.next_token_ms),
    ):
        if latency is not None:
            notes.append(
                f"{name}: {latency.mean:,.1f} ms on average (p50 {latency.p50:,.1f}, "
                f"p90 {latency.p90:,.1f}, p99 {latency.p99:,.1f}, longest {latency.max:,.1f})"
            )
    for drafts in report.drafts:
        places = ", ".join(f"{place.accepted / place.reached:.0%}" for place in drafts.positions)
        notes.append(
            f"drafts, {drafts.proposer}: {drafts.accepted:,} of {drafts.drafted:,} tokens accepted "
            f"({drafts.acceptance:.1%}); by position: {places}"
        )
    return [Text(note, style="dim") for note in notes]


def _host(report: ProfileReport, host: HostUse) -> str:
    """How long threads waited for a core, beside what was exposed, and what else held them up."""
    exposed_ms = (report.wall_s - report.idle_s - report.device_busy_s) * 1e3
    waits = ", ".join(
        f"{use.track} {use.waiting_ns * 1e-6:,.2f} ms in {use.taken_off:,} interruptions"
        for use in sorted(host.threads, key=lambda use: -use.waiting_ns)
    )
    text = f"exposed: {exposed_ms:,.2f} ms; ready without a core: {waits}"
    for ns, cause in (
        (host.throttled_ns, "stopped by the CPU quota"),
        (host.stolen_ns, "taken by other machines on the host"),
    ):
        if ns > 0:
            text += f"; {ns * 1e-6:,.0f} ms {cause}"
    return text + (f"; {host.faults:,} pages read from disk" if host.faults else "")


def _sweep(report: ProfileReport) -> RenderableType:
    """The points of a sweep as columns."""
    rows = columns("sequences", (f"{point.sequences:,}" for point in report.sweep))
    rows.add_row("exposed", *(f"{point.exposed_cpu_ratio:.3%}" for point in report.sweep))
    rows.add_row("tokens/s", *(f"{point.tokens_per_second:,.0f}" for point in report.sweep))
    rows.add_row("step ms, mean", *(f"{point.step_ms:.3f}" for point in report.sweep))
    tracks = dict.fromkeys(track for point in report.sweep for track in point.cpu_us_per_step)
    for track in tracks:
        cells = (f"{point.cpu_us_per_step.get(track, 0.0):,.0f}" for point in report.sweep)
        rows.add_row(f"{track}, µs per step", *cells)
    return rows


def _flames(report: ProfileReport) -> RenderableType:
    """The Python functions below each stage, behind the number of samples that have them."""
    lines = [Text("samples  Python below each stage", style="bold")]
    for flame in report.flames:
        stage = "" if flame.depth else f"{flame.stage}: "
        lines.append(Text(f"{flame.samples:7,}  {'  ' * flame.depth}{stage}{flame.function}"))
    return Group(*lines)


def _replays(report: ProfileReport) -> RenderableType:
    """What clients saw, as it was recorded and in each replay, as columns."""
    rows = columns("", (point.name for point in report.replays))
    for label, field in (("first token", "first_token_ms"), ("next token", "next_token_ms")):
        for share in ("p50", "p99"):
            found = (getattr(point, field) for point in report.replays)
            cells = ("" if each is None else f"{getattr(each, share):,.2f}" for each in found)
            rows.add_row(f"{label} ms, {share}", *cells)
    return rows


def comparison(old: ProfileReport, new: ProfileReport) -> RenderableType:
    """The changes from ``old`` to ``new``: stats, then stages by how much they changed."""
    rows = columns("", ("before", "after", "change"))
    for name, before, after, form in [
        ("exposed CPU ratio", old.exposed_cpu_ratio, new.exposed_cpu_ratio, ".4f"),
        ("tokens/s", old.tokens_per_second, new.tokens_per_second, ",.1f"),
        ("step ms, mean", old.step_ms.mean, new.step_ms.mean, ".3f"),
        ("step ms, p99", old.step_ms.p99, new.step_ms.p99, ".3f"),
    ]:
        rows.add_row(name, f"{before:{form}}", f"{after:{form}}", _change(before, after))
    for name, field in (("exposed CPU ratio", "exposed_cpu_ratio"), ("step ms", "step_ms")):
        then, now = (
            Interval.of([getattr(window, field) for window in report.windows])
            for report in (old, new)
        )
        if then is not None and now is not None:
            verdict = "differs" if then.differs_from(now) else "within noise"
            cells = (f"{each.mean:.4f} ± {each.half:.4f}" for each in (then, now))
            rows.add_row(f"{name}, {WINDOWS} windows", *cells, verdict)
    rows.add_section()
    stages = {(row.track, row.stage): row.us_per_step for row in old.stages}
    changed = {(row.track, row.stage): row.us_per_step for row in new.stages}
    keys = [key for key in stages | changed if not _is_wait(*key)]
    keys.sort(key=lambda key: -abs(changed.get(key, 0.0) - stages.get(key, 0.0)))
    for key in keys:
        before, after = stages.get(key, 0.0), changed.get(key, 0.0)
        name = f"{key[0]} {key[1]}, µs per step"
        rows.add_row(name, f"{before:,.2f}", f"{after:,.2f}", _change(before, after))
    notes = [
        Text(f"measured differently: {name} was {old.setup.get(name)}, is {new.setup.get(name)}")
        for name in sorted(old.setup.keys() | new.setup.keys())
        if old.setup.get(name) != new.setup.get(name)
    ]
    return Group(rows, *notes)


def _change(before: float, after: float) -> str:
    if before == after:
        return "="
    return f"{after / before - 1:+.1%}" if before else "new"
