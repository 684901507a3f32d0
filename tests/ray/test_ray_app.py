"""The application for Ray Serve, with Ray itself: in the example's program, and beside it."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.clients import client_of
from tests.programs import REPOSITORY, Server, environment, running
from tests.ray.cluster import START_S, cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]

MODEL = "pyengine-demo"
QUESTION: Any = {"role": "user", "content": "Tell me a story."}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster() as started:
        yield started.address


@contextmanager
def program(*command: str) -> Iterator[Server]:
    """A program that deploys applications."""
    with running(sys.executable, *command, env=environment()) as server:
        yield server
        assert server.end(signal.SIGTERM, START_S) == 0


@pytest.fixture(scope="module")
def example(address: str) -> Iterator[Server]:
    """The example with two replicas on simulated devices."""
    path = str(REPOSITORY / "examples" / "ray_serve.py")
    with program(path, "--device", "simulated", "--address", address) as server:
        server.expect("ready:", START_S)
        yield server


@pytest.fixture(scope="module")
def others(address: str, example: Server) -> Iterator[Server]:
    """Further applications behind the same ingress."""
    with program(str(REPOSITORY / "tests" / "ray" / "deploy.py"), address) as server:
        server.expect("reserved:", START_S)
        yield server


@pytest.fixture
def url(example: Server) -> str:
    return example.url()


def test_ray_app_answers_openais_client(url: str) -> None:
    with client_of(url) as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=[QUESTION], temperature=0, max_tokens=8
        )
        chunks = list(
            client.chat.completions.create(
                model=MODEL, messages=[QUESTION], temperature=0, max_tokens=8, stream=True
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert len(chunks) > 2
        assert [model.id for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'temprature'"):
            client.completions.create(model=MODEL, prompt="Go on", extra_body={"temprature": 0})
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    assert httpx.get(f"{url}/v1/nothing").status_code == 404


def test_prompts_go_where_their_beginning_is_known(url: str) -> None:
    prompt = "A beginning that is long enough for some blocks of the cache. " * 8
    with client_of(url) as client:
        answers = [
            client.completions.create(model=MODEL, prompt=f"{prompt}{number}", max_tokens=1)
            for number in range(8)
        ]
    cached = [
        answer.usage.prompt_tokens_details.cached_tokens or 0
        for answer in answers
        if answer.usage and answer.usage.prompt_tokens_details
    ]
    # All but the first went to the replica that knew the beginning.
    assert cached[0] == 0
    assert min(cached[1:]) >= 64


async def test_the_load_of_the_engines_adds_and_removes_replicas(url: str, others: Server) -> None:
    others.expect("scaled: 1 replicas")
    before = len(others.output)
    body = {
        "model": MODEL,
        "prompt": "Go on",
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }
    async with httpx.AsyncClient(timeout=None) as client:

        async def ask() -> None:
            async with client.stream("POST", f"{url}/scaled/v1/completions", json=body) as answer:
                async for _ in answer.aiter_lines():
                    pass

        asking = [asyncio.create_task(ask()) for _ in range(12)]
        await asyncio.to_thread(others.expect, "scaled: 2 replicas", START_S)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    # The engines learn that the clients have left, and so the load falls.
    await asyncio.to_thread(others.expect, "scaled: 1 replicas", START_S, before)


def test_two_ranks_answer_from_a_placement_group(url: str, others: Server) -> None:
    reserved = json.loads(others.expect(r"reserved: (.*)")[1])
    assert reserved == [["STRICT_PACK", [{"CPU": 0.2}]]]
    with client_of(f"{url}/parallel") as client:
        answer = client.completions.create(model=MODEL, prompt="Go on", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
