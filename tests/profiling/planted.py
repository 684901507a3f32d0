"""A service on the simulated device in which one thing keeps tokens: ``... planted KIND``.

Prints what the profile says of it, and how long it lasted by the service's own clock, as JSON.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from pyengine import AsyncEngine, SamplingParams
from pyengine.profiling.observe import observe
from pyengine.profiling.report import ProfileReport
from pyengine.profiling.waits import TokenWaits
from pyengine.telemetry.host import HostUse

TIMES = 3
BURN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
SLOW = "{% for a in range(5000) %}{% for b in range(100) %}{% endfor %}{% endfor %}Hello"


class Planted(msgspec.Struct):
    """The profile's waits, and the seconds that the plant lasted."""

    waits: TokenWaits
    seconds: float


def without_core() -> int:
    """Nanoseconds for which this thread was ready and had no core, which are no plant's."""
    return HostUse().with_caller("frontend").threads[0].waiting_ns


async def often(plant: Callable[[], Awaitable[float]]) -> float:
    """The plant a few times, with moments in between in which tokens come as usual."""
    seconds = 0.0
    for _ in range(TIMES):
        await asyncio.sleep(0.1)
        waited = without_core()
        seconds += await plant() - (without_core() - waited) * 1e-9
    await asyncio.sleep(0.1)  # in which the tokens that the last one kept are read
    return seconds


async def gil(_: AsyncEngine) -> float:
    """Another thread computes in one call that does not give the GIL back."""

    def hold() -> float:
        begin = time.monotonic()
        sum(range(30_000_000))
        return time.monotonic() - begin

    return await often(lambda: asyncio.to_thread(hold))


async def loop(_: AsyncEngine) -> float:
    """A call on the loop blocks."""

    async def block() -> float:
        begin = time.monotonic()
        time.sleep(0.6)  # noqa: ASYNC251 - this is the fault
        return time.monotonic() - begin

    return await often(block)


async def template(engine: AsyncEngine) -> float:
    """A slow chat template is rendered on the loop."""

    async def render() -> float:
        begin = time.monotonic()
        engine.render([{"role": "user", "content": "Hi"}], chat_template=SLOW)
        return time.monotonic() - begin

    return await often(render)


async def reader(engine: AsyncEngine) -> float:
    """A stream's reader is slow to come back for more; the others are not."""
    stream = engine.generate([5, 6, 7], SamplingParams(max_tokens=2000, ignore_eos=True))

    await anext(stream)
    waited, begin = without_core(), time.monotonic()
    for _ in range(TIMES):
        await asyncio.sleep(0.6)
        await anext(stream)
    seconds = time.monotonic() - begin - (without_core() - waited) * 1e-9
    stream.abort()
    return seconds


async def core(_: AsyncEngine) -> float:
    """The loop's thread has one core, which busy processes of a higher priority have as well."""
    before = without_core()
    cores = os.sched_getaffinity(0)
    only = min(cores)
    os.sched_setaffinity(0, {only})
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
    burn = [sys.executable, "-c", BURN % only]
    others = [subprocess.Popen(burn) for _ in range(8)]  # noqa: ASYNC220 - at once
    await asyncio.sleep(3)
    for other in others:
        other.kill()
        other.wait()
    os.sched_setaffinity(0, cores)
    return (without_core() - before) * 1e-9


async def read(engine: AsyncEngine, number: int) -> None:
    while True:
        prompt = [9, 8, number]
        params = SamplingParams(max_tokens=2000, ignore_eos=True, seed=number)
        async for _ in engine.generate(prompt, params):
            pass


async def main(kind: str) -> None:
    plant = {"gil": gil, "loop": loop, "template": template, "reader": reader, "core": core}[kind]
    settings: dict[str, Any] = {
        "device": "simulated",
        "simulated_step_ms": 5,
        "max_sequences": 8,
        "template_timeout_s": 60,
    }
    async with AsyncEngine(**settings, placement="process") as engine:
        readers = [asyncio.create_task(read(engine, number)) for number in range(4)]
        await engine.generate([1, 2], SamplingParams(max_tokens=8, ignore_eos=True))
        seconds: list[float] = []

        async def until() -> None:
            seconds.append(await plant(engine))

        observation = await observe(engine, until)
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    waits = ProfileReport.of(observation, {}).token_waits
    assert waits is not None
    sys.stdout.buffer.write(msgspec.json.encode(Planted(waits, seconds[0])))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
