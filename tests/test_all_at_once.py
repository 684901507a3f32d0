"""All that once starved a server, on one server at once: another key is answered throughout."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from pyengine.http.replicas.replica_set import free_port
from tests.programs import START_S, children
from tests.test_unread_output import unread

SECONDS = 45
WITHIN_S = 5.0  # for a short request of the other key
KEYS = """
[[keys]]
name = "alice"
key = "sk-alice-0123456789"

[[keys]]
name = "bob"
key = "sk-bob-0123456789"
"""
SERVE = (
    *("--workers", "2", "--device", "simulated", "--simulated-step-ms", "5"),
    *("--max-waiting", "200", "--store-bytes", str(4 << 20), "--admin-key", "sk-admin-0123456789"),
)
ALICE, BOB, ADMIN = (
    {"authorization": f"Bearer sk-{name}-0123456789"} for name in ("alice", "bob", "admin")
)
MODEL = "pyengine-demo"
SHORT = {"model": MODEL, "prompt": "Go on", "max_tokens": 10, "ignore_eos": True}


async def short(url: str) -> float:
    """How long a short request of bob's takes, on a connection of its own."""
    begin = asyncio.get_running_loop().time()
    async with httpx.AsyncClient(base_url=url, headers=BOB, timeout=START_S, verify=False) as http:
        answer = await http.post("/v1/completions", json=SHORT)
    assert answer.status_code == 200, answer.text
    return asyncio.get_running_loop().time() - begin


async def long_lines(http: httpx.AsyncClient) -> None:
    body = {"request_id": "x" * 70_000}
    assert (await http.post("/admin/abort_request", json=body, headers=ADMIN)).status_code == 404
    assert (await http.get("/admin/requests", headers=ADMIN)).status_code == 200


async def many_lines(http: httpx.AsyncClient) -> None:
    """A batch of a file of two million lines, which fails."""
    file = {"file": ("many.jsonl", b"x\n" * 2_000_000)}
    given = await http.post("/v1/files", files=file, data={"purpose": "batch"}, headers=ALICE)
    if given.status_code == 200:
        batch = {
            "input_file_id": given.json()["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        await http.post("/v1/batches", json=batch, headers=ALICE)


async def first_of_all(http: httpx.AsyncClient) -> None:
    """Before all others, which her key may not be; and then like them."""
    body = SHORT | {"max_tokens": 200}
    refused = await http.post("/v1/completions", json=body | {"priority": -1000}, headers=ALICE)
    assert refused.status_code in (400, 503), refused.text
    answer = await http.post("/v1/completions", json=body, headers=ALICE)
    assert answer.status_code in (200, 503), answer.text


async def stored(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "input": "Go on. " * 300, "max_output_tokens": 16}
    answer = await http.post("/v1/responses", json=body, headers=ALICE)
    assert answer.status_code in (200, 503), answer.text


async def again(url: str, act: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Do it without end; what the stopped worker had is asked again."""
    while True:
        async with httpx.AsyncClient(base_url=url, timeout=START_S, verify=False) as http:
            try:
                while True:
                    await act(http)
            except httpx.TransportError:
                pass


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_another_key_is_answered_throughout(tmp_path: Path) -> None:
    keys, port = tmp_path / "keys.toml", free_port()
    keys.write_text(KEYS)
    url = f"http://127.0.0.1:{port}"
    with unread("--port", str(port), "--api-key-file", str(keys), *SERVE) as (server, _):
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await short(url)
                    break
                except (httpx.TransportError, AssertionError):
                    await asyncio.sleep(0.1)
        stopped = children(server.pid, "worker_main")[0]
        loads = (*[first_of_all] * 64, *[stored] * 4, many_lines, long_lines)
        tasks = [asyncio.create_task(again(url, load)) for load in loads]
        took: list[float] = []
        try:
            end = asyncio.get_running_loop().time() + SECONDS
            while asyncio.get_running_loop().time() < end:
                if len(took) == 5:
                    os.kill(stopped, signal.SIGSTOP)
                took.append(await short(url))
                assert not [task for task in tasks if task.done()], "a load has failed"
            async with httpx.AsyncClient(base_url=url, headers=ADMIN) as http:
                text = (await http.get("/metrics", headers=BOB)).text
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if (Path("/proc") / str(stopped)).exists():
                os.kill(stopped, signal.SIGCONT)
        assert max(took) < WITHIN_S, took
        assert children(server.pid, "worker_main")[0] != stopped, "it was replaced"
        assert "pyengine_store_bytes" in text
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, START_S) == 0
