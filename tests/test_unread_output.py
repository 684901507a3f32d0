"""A server whose output is not read, or has lost its reader: only what it would say is lost."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from pyengine.http.replicas.replica_set import free_port
from tests.programs import PYENGINE, START_S, children, environment

FULL = b"x" * 4096


@contextmanager
def unread(*arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """`pyengine serve` that writes into a pipe which is full, and the end that would read it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while os.write(writing, FULL):
            pass
    except BlockingIOError:
        os.set_blocking(writing, True)
    command = (*PYENGINE, "serve", *arguments)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=environment()
    )
    os.close(writing)
    try:
        yield process, reading
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(reading)


async def completed(url: str) -> int:
    """The status of a short completion, once the server has an engine."""
    asked = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 3}
    async with httpx.AsyncClient(timeout=START_S) as http, asyncio.timeout(START_S):
        while True:
            try:
                answer = await http.post(f"{url}/v1/completions", json=asked)
            except httpx.TransportError:
                continue
            if answer.status_code != 503:
                return answer.status_code


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("form", ["text", "json"])
async def test_an_output_that_is_not_read_stops_nothing(workers: int, form: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    given = ("--workers", str(workers), "--device", "simulated", "--log-format", form)
    with unread("--port", str(port), *given) as (process, _):
        assert await completed(url) == 200
        [engine] = children(process.pid, "engine_main")
        os.kill(engine, signal.SIGKILL)
        assert await completed(url) == 200
        for worker in children(process.pid, "worker_main")[:1]:
            os.kill(worker, signal.SIGKILL)
            assert await completed(url) == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, START_S) == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_server_whose_reader_has_left_ends_well(workers: int) -> None:
    port = free_port()
    given = ("--port", str(port), "--workers", str(workers), "--device", "simulated")
    with unread(*given) as (process, reading):
        os.read(reading, 1 << 20)
        assert await completed(f"http://127.0.0.1:{port}") == 200
        os.dup2(os.open(os.devnull, os.O_RDONLY), reading)  # nobody can read the pipe any more
        assert await completed(f"http://127.0.0.1:{port}") == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, START_S) == 0
