"""Messages of any length between a supervisor and what it runs: none of them ends a server."""

import asyncio
import logging
import signal
from pathlib import Path

import httpx
import pytest

from pyengine.http.replicas.program import Program
from pyengine.http.serving.supervisor import Supervisor
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig
from tests.programs import children, served, until

LONG = 70_000  # asyncio's own limit of a line is 65,536
ADMIN = {"authorization": "Bearer sk-admin-1"}
SERVE = (
    *("--port", "0", "--workers", "2", "--device", "simulated", "--simulated-step-ms", "5"),
    *("--admin-key", "sk-admin-1"),
)


def write_keys(path: Path, count: int) -> None:
    path.write_text(
        "".join(f'[[keys]]\nname = "key-{n}"\nkey = "sk-secret-{n}"\n' for n in range(count))
    )


def key(number: int) -> dict[str, str]:
    return {"authorization": f"Bearer sk-secret-{number}"}


@pytest.mark.slow
async def test_no_length_of_a_message_ends_a_server(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, 1_000)
    with served(*SERVE, "--api-key-file", str(keys)) as server:
        limits = httpx.Limits(max_connections=None)
        url = server.url()
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
            workers = children(server.process.pid, "worker_main")
            asked = {"request_id": "x" * LONG}
            answer = await http.post("/admin/abort_request", json=asked, headers=ADMIN)
            assert answer.status_code == 404

            ids = {f"{n}-".ljust(128, "x") for n in range(350)}
            streams = [asyncio.create_task(generate(http, one)) for one in ids]
            found: list[str] = []
            async with asyncio.timeout(60):
                while len(found) < len(ids):
                    listed = await http.get("/admin/requests", headers=ADMIN)
                    found = [each["id"] for each in listed.json()["requests"]]
            assert set(found) == ids
            ended = await http.post("/admin/abort_request", json={"abort_all": True}, headers=ADMIN)
            assert {each["id"] for each in ended.json()["requests"]} == ids
            assert set(await asyncio.gather(*streams)) == {499}

            write_keys(keys, 3_000)
            server.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while (await http.get("/v1/models", headers=key(2_999))).status_code != 200:
                    pass
            assert children(server.process.pid, "worker_main") == workers
        assert server.end(signal.SIGTERM) == 0


async def generate(http: httpx.AsyncClient, request_id: str) -> int:
    body = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 1_500, "ignore_eos": True}
    headers = key(7) | {"x-request-id": request_id}
    return (await http.post("/v1/completions", json=body, headers=headers)).status_code


async def test_a_message_that_cannot_be_read_ends_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor(EngineConfig(device="simulated"), ServerConfig(workers=2, port=0))
    supervisor.start()
    try:
        await supervisor.engine.start()
        await supervisor.ready()
        before = dict(supervisor.workers)
        with caplog.at_level(logging.ERROR):
            supervisor.workers[0]._reader.feed_data(b"nonsense\n")
            await until(lambda: "nonsense" in caplog.text)
        await supervisor.engine.reset_prefix_cache()
        assert supervisor.workers == before
        assert not any(keeper.done() for keeper in supervisor._keepers)
    finally:
        await supervisor.stop()


async def test_a_long_line_of_a_program_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talks.py").write_text(f"print('x' * {LONG}); print('end')")
    monkeypatch.syspath_prepend(tmp_path)
    lines: list[str] = []
    program = await Program.start("talks", [], lines.append)
    assert await program.ended() == 0
    assert lines == ["x" * LONG, "end"]
