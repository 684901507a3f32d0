"""Starts under rough conditions: each serves, or says in a line what is wrong."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pyengine.http.replicas.replica_set import free_port
from tests.programs import PYENGINE, START_S, environment, served

SERVE = ("--port", "0", "--device", "simulated", "--simulated-step-ms", "2")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sighup_of_a_closed_terminal_drains(workers: str) -> None:
    with served(*SERVE, "--workers", workers) as server:
        asked = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 300, "stream": True}
        url = await asyncio.to_thread(server.url)
        async with (
            httpx.AsyncClient(base_url=url, timeout=START_S) as http,
            http.stream("POST", "/v1/completions", json={**asked, "ignore_eos": True}) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            os.kill(server.process.pid, signal.SIGHUP)
            assert [line async for line in lines][-2] == "data: [DONE]"
        assert await asyncio.to_thread(server.wait) == 0


def test_a_service_manager_that_is_gone_ends_no_server(tmp_path: Path) -> None:
    gone = environment(NOTIFY_SOCKET=str(tmp_path / "gone"))
    with served(*SERVE, env=gone) as server:
        assert httpx.get(f"{server.url()}/health").status_code == 200
        server.expect(r"warning: NOTIFY_SOCKET=.*gone: ")
        assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in "".join(server.output)


def test_no_temporary_folder_is_said_in_a_line() -> None:
    program = (
        "import tempfile, pyengine.cli\n"
        "def refuse(*_, **__): raise FileNotFoundError('no usable temporary folder')\n"
        "tempfile.mkdtemp = refuse\n"
        "pyengine.cli.main(['serve', '--port', '0', '--workers', '2', '--device', 'simulated'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1
    assert "give --store a file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "complete", "chat"])
def test_without_docstrings_a_command_runs(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "pyengine", command, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--max-sequences" in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_closed_standard_streams_harm_nothing(closed: str) -> None:
    port = free_port()
    arguments = ("serve", "--port", str(port), "--device", "simulated")
    shell = f'exec "$@" {closed}'
    command = ("sh", "-c", shell, "sh", *PYENGINE, *arguments)
    process = subprocess.Popen(command, env=environment())  # noqa: ASYNC220 - milliseconds
    try:
        asked = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 3}
        async with httpx.AsyncClient(timeout=START_S) as http, asyncio.timeout(START_S):
            status = 503
            while status == 503:
                try:
                    url = f"http://127.0.0.1:{port}/v1/completions"
                    status = (await http.post(url, json=asked)).status_code
                except httpx.TransportError:
                    assert process.poll() is None
        assert status == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, START_S) == 0
    finally:
        process.kill()
        process.wait()
