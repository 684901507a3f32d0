"""``pyengine serve --replicas``: one URL, each engine's cache, deaths and the end."""

import asyncio
import fcntl
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.clients import Reader, begun, client_of, tokens_of
from tests.programs import REPOSITORY, environment, served, wait_for_end
from tests.replicas.conftest import (
    REQUESTS,
    SIMULATED,
    Replicas,
    ask_many,
    children,
    listener,
    value,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_prompts_are_found_again_and_work_is_spread(replicas: Replicas, alone: str) -> None:
    of_two, of_one = await ask_many(replicas.url), await ask_many(alone)
    assert of_two.statuses == of_one.statuses == {200: REQUESTS}
    assert of_one.cached_share > 0.8
    assert of_two.cached_share >= 0.95 * of_one.cached_share
    text = replicas.metrics()
    for replica in "01":
        finished = value(text, "pyengine_request_finished_total", reason="length", replica=replica)
        assert finished >= REQUESTS / 4
    assert value(text, "smg_router_requests_total", endpoint="chat") >= REQUESTS


def test_errors_are_those_of_the_engine(replicas: Replicas) -> None:
    body: dict[str, object] = {"model": "pyengine-demo"}
    body["messages"] = [{"role": "user", "content": "Hi"}]
    body["temprature"] = 0
    answer = httpx.post(f"{replicas.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "Unknown parameter: 'temprature'. Did you mean 'temperature'?"
    )


def test_replicas_are_added_with_the_key_alone(replicas: Replicas) -> None:
    evil = {"url": "http://127.0.0.1:1"}
    assert httpx.post(f"{replicas.url}/workers", json=evil).status_code == 401
    assert httpx.get(f"{replicas.url}/workers").status_code == 401


def test_object_stored_by_one_replica_is_found_by_all(replicas: Replicas) -> None:
    body = {"model": "pyengine-demo", "input": "Hello!", "max_output_tokens": 8}
    asked = f"{replicas.url}/v1/responses"
    first = httpx.post(asked, json=body).json()
    second = httpx.post(asked, json={**body, "previous_response_id": first["id"]}).json()
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 8
    for url in dict(replicas.lives()).values():
        for each in (first, second):
            assert httpx.get(f"{url}/v1/responses/{each['id']}").json() == each


def test_paths_that_the_router_does_not_have(replicas: Replicas) -> None:
    made = httpx.post(
        f"{replicas.url}/v1/responses",
        json={"model": "pyengine-demo", "input": "Hello!", "max_output_tokens": 1},
    ).json()
    _, url = replicas.lives()[-1]
    for path in ("files", "batches", "chat/completions", f"responses/{made['id']}"):
        assert httpx.get(f"{replicas.url}/v1/{path}").status_code in (404, 405)
        assert httpx.get(f"{url}/v1/{path}").status_code == 200


async def test_a_replica_killed_while_idle_costs_no_request(replicas: Replicas) -> None:
    index, url = replicas.lives()[-1]
    os.kill(listener(url), signal.SIGKILL)
    answers = await ask_many(replicas.url, at_once=4)
    assert answers.statuses == {200: REQUESTS}
    expect = replicas.server.expect
    await asyncio.to_thread(expect, rf"replica {index} exited with status -9; starting another")
    await asyncio.to_thread(expect, rf"replica {index}: ready, .*(?!{url}$)http://")
    assert replicas.value("pyengine_replica_restarts_total", replica=index) == 1
    assert replicas.value("pyengine_replica_up") == 2


async def test_a_router_that_dies_is_started_again(replicas: Replicas) -> None:
    os.kill(listener(replicas.url), signal.SIGKILL)
    await asyncio.to_thread(replicas.server.expect, "the router runs again")
    answers = await ask_many(replicas.url, 20)
    assert answers.statuses == {200: 20}


def test_a_stream_is_finished_before_the_end_and_nothing_is_left() -> None:
    slow = ("--device", "simulated", "--simulated-step-ms", "20")
    with served("--port", "0", "--replicas", "2", *slow) as server:
        url, left = server.url(), children(server.process.pid)
        with client_of(url) as client:
            chunks = begun(client, 50)
            server.process.send_signal(signal.SIGINT)
            server.expect("draining; send the signal again")
            assert tokens_of(chunks) == 50
        assert server.wait() == 0
        assert server.output[-2:] == ["stopped\n", ""]
        for pid in left:
            asyncio.run(wait_for_end(pid))


def test_a_second_signal_stops_at_once() -> None:
    with (
        served("--port", "0", "--replicas", "2", *SIMULATED) as server,
        client_of(server.url()) as client,
    ):
        reader = Reader(begun(client, 2000))
        server.process.send_signal(signal.SIGTERM)
        server.expect("draining; send the signal again")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert reader.wait() is not None


def test_nothing_outlives_a_killed_supervisor() -> None:
    with served("--port", "0", "--replicas", "2", *SIMULATED) as server:
        server.url()
        left = children(server.process.pid)
        assert len(left) >= 5  # the router, two servers, two engines
        server.process.kill()
        for pid in left:
            asyncio.run(wait_for_end(pid))


HELD_ENGINES = """
import fcntl, os, sys
if "pyengine.placement.engine_main" in sys.orig_argv:
    fcntl.flock(os.open(os.environ["GATE"], os.O_RDONLY), fcntl.LOCK_SH)
"""
"""Run by every process as it starts: engines begin when the test lets go of the gate."""


def test_while_it_loads_requests_get_503(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HELD_ENGINES)
    gate = tmp_path / "gate"
    env = environment(PYTHONPATH=f"{tmp_path}:{REPOSITORY}", GATE=str(gate))
    with gate.open("w") as held, ExitStack() as running:
        fcntl.flock(held, fcntl.LOCK_EX)
        server = running.enter_context(
            served("--port", "0", "--replicas", "2", *SIMULATED, env=env)
        )
        url = server.expect(r"listening on (\S+),")[1]
        body = {"model": "pyengine-demo", "prompt": "Go on"}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        fcntl.flock(held, fcntl.LOCK_UN)
        server.expect("ready: ")
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200


def test_a_model_that_cannot_be_loaded_ends_everything() -> None:
    with served("no/such/folder", "--port", "0", "--replicas", "2") as server:
        assert server.wait() == 1
    text = "".join(server.output)
    assert "replica 0: Error: " in text or "replica 1: Error: " in text
    assert "before it was ready" in text
