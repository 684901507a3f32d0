"""``pyengine profile`` on the simulated device, in small: what its reports hold, not how fast."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyengine import AsyncEngine, SamplingParams, async_engine
from pyengine._core import Stage, Track
from pyengine.cli import main
from pyengine.grammar import json_value
from pyengine.http.serving.server import HttpServer
from pyengine.model.runner import kind_of
from pyengine.profiling.clients import Readers
from pyengine.profiling.observe import step_times_ms
from pyengine.profiling.page import page
from pyengine.profiling.perfetto import trace
from pyengine.profiling.report import ProfileReport, load_report
from pyengine.profiling.windows import WINDOWS, Interval
from pyengine.profiling.workload import Job
from pyengine.telemetry.spans import SPAN

SMALL = ["--device", "simulated", "--step-ms", "1", "--sequences", "4", "--seconds", "0.4"]

# The document as far as the page's script knows it. Prints what it wrote, then presses buttons.
DOM = """
const made = {};
const element = (id) => made[id] ??= {style: {}, innerHTML: "", attributes: {},
  setAttribute(name, value) { this.attributes[name] = value; }};
const listeners = {};
globalThis.document = {getElementById: element, addEventListener: (name, f) => listeners[name] = f};
globalThis.innerWidth = 1000;
"""
PRESS = """
const whole = made.timeline?.innerHTML;
for (const id of ["near", "after", "before", "whole"]) made[id]?.onclick?.();
listeners.pointermove({target: {dataset: {tip: "launch"}}, clientX: 5, clientY: 5});
listeners.pointermove({target: {}, clientX: 5, clientY: 5});
console.log(JSON.stringify({main: made.main.innerHTML, tip: made.tip.textContent,
  same: whole === made.timeline?.innerHTML, pressed: made.whole?.attributes["aria-pressed"]}));
"""


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["profile", *arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of output of one run."""
    folder = tmp_path_factory.mktemp("profile")
    files = [f"--{kind}={folder / name}" for kind, name in
             [("json", "r.json"), ("perfetto", "t.json"), ("html", "p.html")]]  # fmt: skip
    result = run(*SMALL, *files, "--placement=thread", "--busy-loop", "--sweep=2,4",
                 "--grammar=records", "--speculation=forced")  # fmt: skip
    assert "of the device's time was lost to the CPU" in result.output
    assert "buffer_fill" in result.output
    return folder


def test_the_report_adds_up(made: Path) -> None:
    report = load_report((made / "r.json").read_bytes(), "r.json")
    scheduler = [row for row in report.stages if row.track == "scheduler"]
    known = report.device_busy_s + sum(row.exposed_s for row in scheduler)
    assert known == pytest.approx(report.wall_s, rel=0.02)
    assert abs(report.unaccounted_ratio) <= 0.02
    exposed = report.wall_s - report.idle_s - report.device_busy_s
    assert report.exposed_cpu_ratio == pytest.approx(exposed / report.device_busy_s)
    assert report.exposed_cpu_ratio_busy_loop is not None
    assert report.device_busy_s == pytest.approx(report.steps * 1e-3, rel=0.05)
    drawn = {track for track, *_ in report.timeline}
    assert drawn <= {"device", "scheduler", "detokenizer", "frontend"}
    assert report.token_waits is not None
    assert report.token_waits.p50 <= report.token_waits.p99 <= report.token_waits.longest
    # Every step gives every sequence a token, and more where drafts are right; those at the edges
    # of the watch may be off.
    assert report.tokens >= 0.8 * 4 * report.steps
    assert report.recorder.lost == 0
    assert report.recorder.cost_s == pytest.approx(
        report.recorder.spans * report.recorder.span_ns * 1e-9
    )
    assert [point.sequences for point in report.sweep] == [2, 4]
    assert report.step_ms.p50 <= report.step_ms.p90 <= report.step_ms.p99 <= report.step_ms.max
    assert min(report.step_ms.values) >= 0.999


def test_the_machine_and_the_windows_are_in_the_report(made: Path) -> None:
    report = load_report((made / "r.json").read_bytes(), "r.json")
    assert report.host is not None
    assert {use.track for use in report.host.threads} >= {"scheduler", "detokenizer", "frontend"}
    assert all(use.running_ns > 0 for use in report.host.threads if use.track == "scheduler")
    assert len(report.windows) == WINDOWS
    exposed = Interval.of([window.exposed_cpu_ratio for window in report.windows])
    assert exposed is not None
    assert not exposed.differs_from(exposed)
    assert Interval(1.0, 0.1).differs_from(Interval(1.2, 0.1))
    output = run("--compare", str(made / "r.json"), str(made / "r.json")).output
    assert output.count("within noise") == 2


def test_each_stage_is_explained_on_demand() -> None:
    output = run(*SMALL, "--explain").output
    assert "Choosing the rows of a step" in output
    assert "ready without a core: " in " ".join(output.split())
    assert all(stage.meaning.endswith(".") for stage in Stage.all())


def test_the_page_needs_nothing_else(made: Path) -> None:
    text = (made / "p.html").read_text()
    assert not re.search(r"https?://|src=|@import|url\(|<link", text)
    assert "/*REPORT*/" not in text


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
def test_the_pages_script_runs(made: Path, tmp_path: Path) -> None:
    text = (made / "p.html").read_text()
    drawn = drive(text, tmp_path)
    for heading in ("One step", "CPU time by stage", "Step times", "As the batch grows", "Drafts",
                    "Tokens waited for the frontend"):  # fmt: skip
        assert heading in drawn["main"]
    assert "NaN" not in drawn["main"]
    assert "undefined" not in drawn["main"]
    assert drawn["tip"] == "launch"
    assert drawn["same"]
    assert drawn["pressed"] == "true"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
def test_the_page_of_an_engine_that_did_nothing(made: Path, tmp_path: Path) -> None:
    report = json.loads((made / "r.json").read_text())
    report |= {
        "steps": 0,
        "stages": [],
        "timeline": [],
        "sweep": [],
        "setup": {"model": "</script>"},
    }
    report["step_ms"]["values"] = []
    drawn = drive(page(load_report(json.dumps(report).encode(), "r")), tmp_path)
    assert "All stages" in drawn["main"]
    assert "&lt;/script&gt;" in drawn["main"]


def drive(text: str, folder: Path) -> dict[str, Any]:
    """Run the script of a page in node; what it made."""
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    path = folder / "page.js"
    path.write_text(DOM + script[0] + PRESS)
    subprocess.run(["node", "--check", path], check=True)
    done = subprocess.run(["node", path], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_trace_loads(made: Path) -> None:
    events = json.loads((made / "t.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"scheduler", "detokenizer", "frontend", "device"} <= tracks
    slices = [e for e in events if e["ph"] == "X"]
    assert {"launch", "device", "commit", "detokenize"} <= {e["name"] for e in slices}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)
    # Slices of one thread's track follow each other.
    track = sorted((e["ts"], e["dur"]) for e in slices if e["tid"] == 1)
    ends = [start + length for start, length in track]
    assert all(end <= start + 0.002 for end, (start, _) in zip(ends, track[1:], strict=False))


def test_a_request_has_a_lane_and_its_first_token_comes_from_a_step() -> None:
    spans = np.zeros(4, SPAN)
    number = 2 << 48 | 7
    for at, (start, end, step, stage, track) in enumerate(
        [
            (5_000, 9_000, number, Stage.QUEUE_WAIT, Track.REQUEST),
            (9_000, 30_000, number, Stage.PREFILL, Track.REQUEST),
            (10_000, 20_000, 3, Stage.DEVICE, Track.DEVICE),
            (8_000, 12_000, 3, Stage.LAUNCH, Track.SCHEDULER),
        ]
    ):
        spans[at] = (start, end, step, int(stage), int(track), (0,) * 6)
    events = json.loads(trace(spans))["traceEvents"]
    assert [(e["ph"], e["name"], e["ts"], e["id"]) for e in events if e["ph"] in "be"] == [
        ("b", "queue_wait", 0.0, "2.7"), ("e", "queue_wait", 4.0, "2.7"),
        ("b", "prefill", 4.0, "2.7"), ("e", "prefill", 25.0, "2.7"),
    ]  # fmt: skip
    assert [(e["ph"], e["ts"]) for e in events if e["ph"] in "sf"] == [("s", 5.0), ("f", 25.0)]
    launch = next(e for e in events if e["name"] == "launch")
    assert (launch["args"]["exposed_us"], launch["cat"]) == (2.0, "exposed")


def test_the_trace_has_counters(made: Path) -> None:
    events = json.loads((made / "t.json").read_text())["traceEvents"]
    running = [e["args"]["running"] for e in events if e["name"] == "running"]
    assert running
    assert set(running) == {4}
    assert all(e["args"]["tokens/s"] > 0 for e in events if e["name"] == "tokens/s")
    requests = {e["id"] for e in events if e["ph"] == "b"}
    assert all(re.fullmatch(r"\d+\.\d+", request) for request in requests)


def test_step_times_leave_idle_out() -> None:
    ms = 1_000_000
    device, idle = (Stage.DEVICE, Track.DEVICE), (Stage.IDLE, Track.SCHEDULER)
    spans = np.zeros(4, SPAN)
    for at, (start, end, kind) in enumerate(
        [(1, 9, device), (10, 18, device), (19, 95, idle), (100, 101, device)]
    ):
        spans[at] = (start * ms, end * ms, 0, int(kind[0]), int(kind[1]), (0,) * 6)
    assert step_times_ms(spans).tolist() == pytest.approx([8.0, 9.0, 7.0])
    assert len(step_times_ms(spans[:0])) == 0


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 20 * n, "input_length": 100 + n, "output_length": 5, "hash_ids": [n % 2]}
        for n in range(20)
    ]
    rows.append({"timestamp": 400, "input_length": 9000, "output_length": 3})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run(
        "--device=simulated", "--step-ms=1", "--sequences=8", "--seconds=20", f"--trace={path}",
        "--placement=thread", "--rate-scale=3", "--clip", "--json=-",
    )  # fmt: skip
    report = load_report(result.stdout_bytes, "stdout")
    assert (report.setup["requests"], report.setup["answered"], report.setup["clipped"]) == (
        21,
        21,
        1,
    )
    assert report.tokens == 20 * 5 + 3
    assert report.first_token_ms is not None
    assert report.next_token_ms is not None
    assert report.first_token_ms.requests == 21
    assert report.next_token_ms.p50 > 0
    assert 1.0 < report.first_token_ms.p50 <= report.first_token_ms.p99
    # Every other prompt begins alike, for 100 tokens: all but the first two find that.
    assert report.cached_share is not None
    assert report.ideal_cached_share is not None
    assert 0.3 < report.cached_share <= report.ideal_cached_share + 0.1
    assert report.queue_wait_ms is not None
    assert report.queue_wait_ms.requests == 21


def test_two_reports_are_compared(made: Path, tmp_path: Path) -> None:
    old = made / "r.json"
    report = json.loads(old.read_text())
    report["tokens_per_second"] *= 2
    report["setup"]["sequences"] = 8
    new = tmp_path / "new.json"
    new.write_text(json.dumps(report))
    output = run("--compare", str(old), str(new)).output
    assert "+100.0%" in output
    assert "sequences was 4, is 8" in output
    refused = CliRunner().invoke(main, ["profile", "--compare", str(old), str(made / "p.html")])
    assert refused.exit_code == 1
    assert "not a report" in refused.output


def test_many_schemas_and_another_tokenizer(tmp_path: Path) -> None:
    vocabulary = json.loads((Path("pyengine/demo/model/tokenizer.json")).read_text("utf-8"))
    first = 1 + max(vocabulary["model"]["vocab"].values(), default=0)
    first = max(first, *(added["id"] + 1 for added in vocabulary["added_tokens"]))
    vocabulary["model"]["vocab"] |= {f"zz{number}": first + number for number in range(5000)}
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(vocabulary), encoding="utf-8")
    result = run(*SMALL, "--placement=thread", "--grammar=mixed", f"--tokenizer={other}",
                 "--json=-")  # fmt: skip
    report = load_report(result.stdout_bytes, "stdout")
    assert report.setup["grammar"] == "mixed"
    assert report.tokens > 0


def test_constrained_answers_show_masks_and_drafts() -> None:
    # How the clock judges drafts is not foreseen, but forced ones are tried again and again.
    result = run(*SMALL, "--placement=thread", "--grammar=records", "--speculation=forced",
                 "--json=-")  # fmt: skip
    report = load_report(result.stdout_bytes, "stdout")
    assert (report.setup["grammar"], report.setup["speculation"]) == ("records", "forced")
    stages = {row.stage: row for row in report.stages if row.track == "scheduler"}
    assert stages["grammar"].count >= report.steps - 1
    assert report.cpu_us_per_step["scheduler"] < sum(
        row.us_per_step for row in stages.values() if row.stage not in ("idle", "copy_back")
    )
    [forced] = report.drafts
    assert forced.proposer == "forced"
    assert 0 < forced.accepted <= forced.drafted
    assert forced.acceptance == forced.accepted / forced.drafted
    assert sum(position.accepted for position in forced.positions) == forced.accepted
    assert {(row.track, row.stage) for row in report.stages} >= {("scheduler", "draft")}


def test_a_schema_of_ones_own_may_end_early(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"enum": ["yes", "no"]}')
    report = load_report(
        run(*SMALL, "--placement=thread", f"--grammar={path}", "--json=-").stdout_bytes, "stdout"
    )
    assert report.tokens > 0
    assert report.drafts == []


def test_the_report_tells_the_device_that_auto_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyengine.devices.cuda._has_gpu", lambda: False)
    arguments = ["--sequences=2", "--seconds=0.3", "--placement=thread", "--json=-"]
    report = load_report(run(*arguments).stdout_bytes, "stdout")
    assert report.setup["device"].startswith("cpu, float32, ")
    others = {"launch", "sample", "copy_back", "idle"}  # the device's work, and waiting
    rows = [row for row in report.stages if row.track == "scheduler"]
    assert {"launch", "sample"} <= {row.stage for row in rows if row.us_per_step > 0}
    work = sum(row.us_per_step for row in rows if row.stage not in others)
    assert report.cpu_us_per_step["scheduler"] == pytest.approx(work)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("cpu, float32, 2 threads", "cpu"),
        ("2 x cpu, float32, torch", "cpu"),
        ("cuda, NVIDIA H200, bfloat16", "cuda"),
        ("simulated, 8 ms a step", "simulated"),
    ],
)
def test_the_kind_of_a_device(words: str, kind: str) -> None:
    assert kind_of(words) == kind


async def test_masks_are_exposed_where_the_cpu_is_the_device() -> None:
    answer = SamplingParams(max_tokens=30, seed=1)
    async with AsyncEngine(max_context=256) as engine:
        before = await engine.telemetry()
        await engine.generate("Hello", answer, grammar=json_value())
        await engine.generate("Hello", answer)
        await engine.drained()
        window = (await engine.telemetry()).since(before)
    stages = {(total.track, total.stage): total for total in window.stages}
    masks = stages["scheduler", "grammar"]
    assert masks.overlapped_ns == 0
    assert masks.exposed_ns > 0
    forward, sampling = stages["device", "device"], stages["device", "sample"]
    assert sampling.count == masks.count
    assert forward.count == window.steps
    assert window.busy_ns == forward.total_ns + sampling.total_ns


async def test_a_running_server_is_watched(tmp_path: Path) -> None:
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        server = HttpServer(engine, port=0)
        url = await server.start()
        question = {"model": engine.model_name, "messages": [{"role": "user", "content": "Hello"}],
                    "max_tokens": 60, "stream": True}  # fmt: skip
        try:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                target = tmp_path / "r.json"
                watch = asyncio.to_thread(
                    run, "--attach", url, "--seconds", "0.5", f"--json={target}",
                    f"--perfetto={tmp_path / 't.json'}",
                )  # fmt: skip
                watching = asyncio.create_task(watch)
                while not server.app.watching.locked():
                    await client.get("/health")
                refused = await client.get("/debug/profile")
                assert refused.status_code == 503
                for _ in range(3):
                    await client.post("/v1/chat/completions", json=question)
                await watching
                for seconds in ("0", "61", "soon", "nan"):
                    answer = await client.get("/debug/profile", params={"seconds": seconds})
                    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seconds")
        finally:
            await server.stop(0)
    report: ProfileReport = load_report(target.read_bytes(), "r.json")
    seen = {(row.track, row.stage) for row in report.stages}
    wanted = {"http_decode", "template", "tokenize", "message", "sse_encode", "socket_write"}
    assert {("frontend", stage) for stage in wanted} <= seen
    assert report.idle_s > 0
    assert report.tokens > 0
    assert report.setup["device"] == "simulated, 1 ms a step"


def test_workload_that_cannot_be_profiled_is_refused() -> None:
    for arguments, message in [
        (["--sweep", "1,x"], "numbers of sequences"),
        (["--attach", "nowhere"], "give a URL"),
        (["--attach", "http://x", "--sweep", "2,4"], "--attach does not go with --sweep"),
        (["--compare", "a", "b", "--json", "-"], "--compare does not go with --json"),
        (["--trace", "t.csv", "--busy-loop"], "--trace does not go with --busy-loop"),
        (["--max-sequences", "3"], "use --sequences"),
        (["--clip", "--limit", "3"], "--clip, --limit needs --trace"),
        (["--attach", "http://127.0.0.1:9"], "cannot measure"),
        ([*SMALL, "--prompt-tokens", "100000"], "no room for an answer"),
        ([*SMALL, "--trace", "/absent.csv"], "cannot read the trace"),
        (["--speculation", "nobody,ngram"], "'speculation' names 'nobody'"),
        (["--grammar", "/absent.json"], "built in are records, tools, mixed"),
        ([*SMALL, "--tokenizer", "/absent.json"], "no tokenizer in /absent.json"),
        (["--device", "cpu", "--tokenizer", "/absent.json"], "needs --device simulated"),
        (["--grammar", __file__], "not valid JSON"),
        (["--attach", "http://x", "--grammar", "records"], "--attach does not go with --grammar"),
    ]:
        result = CliRunner().invoke(main, ["profile", *arguments])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())


def test_workload_goes_by_the_running_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much context a device of ``auto`` has room for is known when it runs, not before."""
    asked: list[Job] = []
    read = Readers.read

    async def noted(self: Readers, job: Job, seed: int) -> None:
        asked.append(job)
        await read(self, job, seed)

    monkeypatch.setattr(Readers, "read", noted)
    monkeypatch.setattr(async_engine.AsyncEngine, "max_context", property(lambda engine: 42))
    run("--device", "auto", "--placement=thread", "--sequences", "2", "--seconds", "0.1")
    assert {(len(job.prompt), job.answer_tokens) for job in asked} == {(32, 10)}
