"""What a client outside measures between its tokens is what ``/metrics`` says."""

import asyncio
import json
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.programs import REPOSITORY

TEXTS = 300


@pytest.fixture
def service() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.http.held_service"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as service:
        yield service
        service.kill()


async def gaps(http: httpx.AsyncClient, seed: int, halfway: asyncio.Event) -> list[float]:
    """Seconds between the texts of one stream; says when half of them are there."""
    times = []
    body = {"model": "pyengine-demo", "prompt": "Tell me more", "ignore_eos": True, "seed": seed}
    body |= {"stream": True, "max_tokens": TEXTS}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            now = time.monotonic()
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                times.append(now)
            if len(times) == TEXTS // 2:
                halfway.set()
    gaps: list[float] = np.diff(times).tolist()
    return gaps


def sampled(text: str, name: str) -> dict[str, float]:
    """The values of a metric by the bounds of its buckets."""
    return {
        sample.labels.get("le", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"pyengine_{name}"
    }


async def measured(url: str, service: subprocess.Popen[str]) -> tuple[list[float], str]:
    """The gaps of some streams, of which the service kept the loop once, and its metrics."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        halfway = asyncio.Event()
        streams = [asyncio.create_task(gaps(http, seed, halfway)) for seed in range(2)]
        await halfway.wait()
        assert service.stdin is not None
        service.stdin.write("\n")
        service.stdin.flush()
        found = await asyncio.gather(*streams)
        return list(chain.from_iterable(found)), (await http.get("/metrics")).text


@pytest.mark.slow
def test_a_clients_gaps_are_those_of_the_servers_histogram(service: subprocess.Popen[str]) -> None:
    assert service.stdout is not None
    found, text = asyncio.run(measured(service.stdout.readline().strip(), service))
    samples = sampled(text, "inter_token_latency_seconds_bucket")
    bounds, counts = [float(bound) for bound in samples], list(samples.values())
    assert counts[-1] == pytest.approx(len(found), rel=0.02)
    assert max(found) >= 0.2
    for share in (0.5, 0.99, 1.0):
        client = bisect_left(bounds, float(np.quantile(found, share)))
        server = bisect_left(counts, share * counts[-1])
        assert abs(client - server) <= 1, (share, found, samples)
