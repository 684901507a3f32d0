"""Reports in the terminal: one profile, or two side by side."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyengine.profiling.report import ProfileReport, StageRow

# Not work: shown, but not added up.
WAITS = ("copy_back", "idle", "device", "queue_wait")


def table(report: ProfileReport) -> RenderableType:
    """The report as text for the terminal."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows.add_column("track")
    rows.add_column("stage")
    for name in ("count", "exposed ms", "overlapped ms", "µs per step", "share"):
        rows.add_column(name, justify="right")
    before = None
    for row in report.stages:
        rows.add_row(
            row.track if row.track != before else "",
            row.stage,
            f"{row.count:,}",
            _exposed(row),
            f"{row.overlapped_s * 1e3:,.2f}",
            f"{row.us_per_step:,.1f}",
            "" if row.stage in WAITS else f"{row.share:.2%}",
            style="dim" if row.stage in WAITS else "",
        )
        before = row.track
    return Group(_headline(report), Text(), rows, Text(), *_notes(report))


def _exposed(row: StageRow) -> Text:
    milliseconds = row.exposed_s * 1e3
    style = "yellow" if milliseconds >= 0.01 and row.stage not in WAITS else ""
    return Text(f"{milliseconds:,.2f}", style=style)


def _headline(report: ProfileReport) -> Text:
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
    return text


def _notes(report: ProfileReport) -> list[Text]:
    cost = report.recorder
    lost = f", {cost.lost:,} lost" if cost.lost else ""
    notes = [
        f"recorder: {cost.spans:,} spans at {cost.span_ns:.0f} ns, {cost.share:.4%} of the time"
        f"{lost}; not accounted for: {report.unaccounted_ratio:.3%}"
    ]
    if (wait := report.queue_wait_s) is not None:
        notes.append(
            f"queue: {wait.requests:,} requests waited {wait.mean:.3f} s on average "
            f"(p50 {wait.p50:.3f}, p99 {wait.p99:.3f}, longest {wait.max:.3f})"
        )
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
    for name, latency in (("first token", report.ttft_ms), ("each further", report.tpot_ms)):
        if latency is not None:
            notes.append(
                f"{name}: {latency.mean:,.1f} ms on average (p50 {latency.p50:,.1f}, "
                f"p90 {latency.p90:,.1f}, p99 {latency.p99:,.1f})"
            )
    for drafts in report.drafts:
        places = ", ".join(f"{place.accepted / place.reached:.0%}" for place in drafts.positions)
        notes.append(
            f"drafts, {drafts.proposer}: {drafts.accepted:,} of {drafts.drafted:,} tokens accepted "
            f"({drafts.acceptance:.1%}); by position: {places}"
        )
    for point in report.sweep:
        tracks = ", ".join(f"{track} {us:,.0f}" for track, us in point.cpu_us_per_step.items())
        notes.append(
            f"{point.sequences:>6,} sequences: {point.exposed_cpu_ratio:.3%} exposed, "
            f"µs of CPU per step: {tracks}"
        )
    return [Text(note, style="dim") for note in notes]


def comparison(old: ProfileReport, new: ProfileReport) -> RenderableType:
    """The changes from ``old`` to ``new``: stats, then stages by how much they changed."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows.add_column("")
    for name in ("before", "after", "change"):
        rows.add_column(name, justify="right")
    for name, before, after, form in [
        ("exposed CPU ratio", old.exposed_cpu_ratio, new.exposed_cpu_ratio, ".4f"),
        ("tokens/s", old.tokens_per_second, new.tokens_per_second, ",.1f"),
        ("step ms, mean", old.step_ms.mean, new.step_ms.mean, ".3f"),
        ("step ms, p99", old.step_ms.p99, new.step_ms.p99, ".3f"),
    ]:
        rows.add_row(name, f"{before:{form}}", f"{after:{form}}", _change(before, after))
    rows.add_section()
    stages = {(row.track, row.stage): row.us_per_step for row in old.stages}
    changed = {(row.track, row.stage): row.us_per_step for row in new.stages}
    keys = [key for key in stages | changed if key[1] not in WAITS]
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
