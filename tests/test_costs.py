"""What requests are told that they cost adds up to the device's time."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.completion import total_cost
from pyengine.http.serving.server import HttpServer

SETTINGS: dict[str, Any] = {
    "device": "simulated",
    "simulated_step_ms": 2,
    "simulated_acceptance": 0.7,
}


@pytest.mark.parametrize("sequences", [8, pytest.param(64, marks=pytest.mark.slow),
                                       pytest.param(256, marks=pytest.mark.slow)])  # fmt: skip
async def test_costs_add_up_to_the_devices_busy_time(sequences: int) -> None:
    engine = AsyncEngine(**SETTINGS, max_sequences=sequences, speculation=("ngram",))
    async with engine:
        await engine.generate([1, 2, 3], SamplingParams(max_tokens=1))
        busy = (await engine.telemetry()).busy_ns
        shared = list(range(300, 400))
        answers = await asyncio.gather(
            *(
                engine.generate(
                    [*shared, number], SamplingParams(max_tokens=150, ignore_eos=True), cost=True
                )
                for number in range(2 * sequences)
            )
        )
        totals, stats = await engine.telemetry(), await engine.report()
    cost = total_cost(answer.usage for answer in answers)
    assert cost is not None
    assert cost.device_seconds == pytest.approx((totals.busy_ns - busy) * 1e-9, rel=0.02)
    assert stats["cost_device_ns"] == pytest.approx(cost.device_seconds * 1e9)
    assert stats["cost_cache_byte_us"] == pytest.approx(cost.cache_byte_seconds * 1e6)
    assert cost.cache_byte_seconds > 0
    assert max(answer.usage.accepted_drafts for answer in answers) > 0


async def test_a_server_tells_the_cost_where_the_client_asks() -> None:
    engine = AsyncEngine(**SETTINGS)
    server = HttpServer(engine, port=0)
    await server.start()
    asks = {"x-pyengine-cost": "1"}
    try:
        await engine.start()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            completions = client.completions
            body: dict[str, Any] = {
                "model": "pyengine-demo",
                "prompt": "Tell me more",
                "max_tokens": 20,
            }
            plain = await completions.with_raw_response.create(**body)
            whole = await completions.with_raw_response.create(**body, extra_headers=asks)
            stream = await completions.create(
                **body, stream=True, stream_options={"include_usage": True}, extra_headers=asks
            )
            usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(f"{server.url}/metrics")).text
    finally:
        await server.stop(0)
        await engine.close()
    assert "x-pyengine-cost" not in plain.headers
    assert not hasattr(plain.parse().usage, "cost")
    told = json.loads(whole.headers["x-pyengine-cost"])
    assert told == whole.parse().usage.model_dump()["cost"]
    streamed = usages[-1].model_dump()["cost"]
    assert told["device_seconds"] > 0
    assert told["steps"] > 0
    assert {"http_decode", "tokenize", "detokenize", "message"} <= told["cpu_us"].keys()
    assert {"sse_encode", "socket_write"} <= streamed["cpu_us"].keys()
    [line] = [each for each in metrics.splitlines()
              if each.startswith("pyengine_request_device_seconds_total")]  # fmt: skip
    sums = told["device_seconds"] + streamed["device_seconds"]
    assert float(line.split()[-1]) == pytest.approx(sums)


async def test_costs_add_up_to_the_threads_time_by_stage() -> None:
    async with AsyncEngine(**SETTINGS, max_sequences=8) as engine:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        await engine.generate([1], params, cost=True)  # the steps before are the first's mean
        before = await engine.telemetry()
        answers = await asyncio.gather(
            *(engine.generate([2, number], params, cost=True) for number in range(8))
        )
        stages = (await engine.telemetry()).since(before).stages
    cost = total_cost(answer.usage for answer in answers)
    assert cost is not None
    assert {"admit", "buffer_fill", "launch", "commit", "detokenize", "message"} <= set(cost.cpu_us)
    assert not {"idle", "copy_back", "device", "deliver"} & cost.cpu_us.keys()
    threads = ("scheduler", "detokenizer", "frontend")
    spent = sum(
        each.total_ns for each in stages if each.stage in cost.cpu_us and each.track in threads
    )
    assert sum(cost.cpu_us.values()) == pytest.approx(spent * 1e-3, rel=0.1)


async def test_preparing_is_charged_to_its_own_request() -> None:
    long = "What is the weather like today? " * 300
    async with AsyncEngine(**SETTINGS, max_context=8192) as engine:
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        before = await engine.telemetry()
        mine, other = await asyncio.gather(
            engine.chat([{"role": "user", "content": long}], params, cost=True),
            engine.generate([2, 3], params, cost=True),
        )
        text = await engine.generate("Go on", params, cost=True)
        again = await engine.generate([2, 3], params, cost=True)
        stages = (await engine.telemetry()).since(before).of_track("frontend")
    costs = [answer.usage.cost for answer in (mine, other, text, again)]
    made = [cost.cpu_us.keys() & {"template", "tokenize"} for cost in costs if cost is not None]
    assert made == [{"template", "tokenize"}, set(), {"tokenize"}, set()]
    spent = {each.stage: each.total_ns * 1e-3 for each in stages}
    total = total_cost(answer.usage for answer in (mine, other, text, again))
    assert total is not None
    assert total.cpu_us["tokenize"] == pytest.approx(spent["tokenize"])
    assert total.cpu_us["template"] == pytest.approx(spent["template"])
