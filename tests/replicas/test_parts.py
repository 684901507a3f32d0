"""The parts of several replicas: what each gets of the machine, metrics of all, errors."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pyengine import logs
from pyengine.cli.serve import serve
from pyengine.errors import ConfigError
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.replicas import router, shares
from pyengine.http.replicas.operations import Operations, Scraped, merged
from pyengine.http.replicas.replica_set import show_line
from pyengine.http.serving.notify import notify_ready
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig

ONE = '# HELP a_total Help.\n# TYPE a_total counter\na_total{x="1"} 3\n# TYPE b gauge\nb 1\n'


@pytest.mark.parametrize(
    ("cores", "parts", "expected"),
    [
        ([0, 1, 2, 3], 2, [(0, 1), (2, 3)]),
        ([0, 4, 1, 5, 2], 2, [(0, 4), (1, 5, 2)]),
        ([0, 1], 2, [(0,), (1,)]),
        ([0], 2, [None, None]),
    ],
)
def test_cores_are_divided(
    cores: list[int], parts: int, expected: list[tuple[int, ...] | None]
) -> None:
    assert shares.divided(cores, parts) == expected


def test_all_cores_are_in_the_neighbourhood() -> None:
    assert sorted(shares.by_neighbourhood()) == sorted(os.sched_getaffinity(0))


def test_each_replica_gets_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-7")
    first, second = shares.shares(EngineConfig(tensor_parallel=2), 2)
    assert first.environment == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert second.environment == {"CUDA_VISIBLE_DEVICES": "6,GPU-7"}
    assert str(second) == "GPU 6, GPU-7"
    with pytest.raises(ConfigError, match="need 6 GPUs; there are 4"):
        shares.shares(EngineConfig(tensor_parallel=2), 3)


def test_simulated_replicas_use_all_cores() -> None:
    assert shares.shares(EngineConfig(device="simulated"), 3) == [shares.Share()] * 3


def test_metrics_of_replicas_are_one_family() -> None:
    both = list(merged([(ONE, {"replica": "0"}), (ONE, {"replica": "1"})]))
    assert [(family.name, family.type, len(family.samples)) for family in both] == [
        ("a", "counter", 2),
        ("b", "gauge", 2),
    ]
    assert [sample.labels for sample in both[0].samples] == [
        {"x": "1", "replica": "0"},
        {"x": "1", "replica": "1"},
    ]


def test_a_replica_that_does_not_answer_is_down() -> None:
    scraped = Scraped({0: ONE, 1: None}, {0: 0, 1: 4}, "")
    families = {family.name: family for family in scraped.collect()}
    up = families["pyengine_replica_up"].samples
    assert [(sample.labels["replica"], sample.value) for sample in up] == [("0", 1), ("1", 0)]
    restarts = families["pyengine_replica_restarts"].samples
    assert [sample.value for sample in restarts] == [0, 4]


def test_lines_of_replicas_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    show_line(0, "2026-11-22T22:35:37.206Z info: request POST /v1/completions 200")
    show_line(1, '{"time":"2026-11-22T22:35:37.206Z","level":"info"}')
    logs.finish()
    first, second = capfd.readouterr().err.splitlines()
    assert first == "replica 0: 2026-11-22T22:35:37.206Z info: request POST /v1/completions 200"
    assert json.loads(second)["replica"] == 1


class Answer:
    """Where an answer goes."""

    status = 0
    body = b""

    def response_bytes(self, status: int, _: object, body: bytes) -> None:
        self.status, self.body = status, body


async def answer_of(operations: Operations, path: str, query: str = "", **headers: str) -> Answer:
    answer = Answer()
    scope: Any = SimpleNamespace(
        proto="http",
        method="GET",
        path=path,
        query_string=query,
        headers={"host": "localhost"} | headers,
        authority=None,
        http_version="1.1",
    )
    await operations.__rsgi__(scope, answer)
    return answer


async def test_metrics_need_a_key_where_requests_do() -> None:
    given: list[dict[str, str]] = []

    async def scrape(query: str, credentials: dict[str, str]) -> Scraped:
        given.append(credentials)
        return Scraped({0: ONE}, {0: 0}, "")

    config = ServerConfig(api_key=("secret-key",))
    operations = Operations(scrape, Door(AccessSource(config).rules()))
    assert (await answer_of(operations, "/metrics", host="localhost")).status == 401
    wrong = {"authorization": "Bearer another-key"}
    assert (await answer_of(operations, "/metrics", **wrong)).status == 401
    assert not given
    right = {"authorization": "Bearer secret-key"}
    assert (await answer_of(operations, "/metrics", **right)).status == 200
    assert given == [right]
    elsewhere = await answer_of(operations, "/metrics", host="evil.example", **right)
    assert elsewhere.status == 403
    assert (await answer_of(operations, "/v1/completions")).status == 503


async def test_replicas_get_the_query_of_a_scrape() -> None:
    given: list[str] = []

    async def scrape(query: str, credentials: dict[str, str]) -> Scraped:
        given.append(query)
        return Scraped({0: ONE}, {0: 0}, "")

    operations = Operations(scrape, Door(AccessSource(ServerConfig()).rules()))
    each = await answer_of(operations, "/metrics", "experts=1", host="localhost")
    wrong = await answer_of(operations, "/metrics", "experts=all", host="localhost")
    assert (each.status, wrong.status, given) == (200, 400, ["experts=1"])
    assert b"Invalid value for 'experts'" in wrong.body


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--root-path", "/llm"), "--root-path and --replicas do not go together"),
        (("--allow-host", "llm.example"), "--allow-host and --replicas do not go together"),
    ],
)
def test_setting_without_effect_behind_a_router_is_refused(
    options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or the loggers of this process write to stderr from here on, and other tests see no record.
    monkeypatch.setattr("pyengine.logs.configure", lambda *_: None)
    done = CliRunner().invoke(serve, ["--replicas", "2", "--device", "simulated", *options])
    assert done.exit_code == 2
    assert says in done.output


def test_without_smg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'pyengine-llm\[router\]'"):
        router.require_router()


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_a_service_manager_is_told(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "socket") if form == "path" else f"@pyengine-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name if form == "path" else f"\0{name[1:]}")
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify_ready("m", "http://here")
        assert manager.recv(1000).split(b"\n") == [
            b"READY=1",
            b"STATUS=m at http://here",
            b"X_URL=http://here",
        ]


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_ready("m", "http://here")


@pytest.mark.slow
def test_a_program_ends_with_its_line(tmp_path: Path) -> None:
    program = (
        "import asyncio, os\n"
        "from pyengine.http.replicas.program import Program\n"
        "async def main():\n"
        "    lines = asyncio.Queue()\n"
        "    started = await Program.start('forever', [], lines.put_nowait)\n"
        "    print(await lines.get(), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "forever.py").write_text(
        "import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=60,
        check=False,
    )
    descriptor = None
    try:
        descriptor = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    finally:
        if descriptor is not None:
            import select

            assert select.select([descriptor], [], [], 30)[0]
            os.close(descriptor)
