"""A closed loop of streamed completions over HTTP: a number in flight, and what each one saw."""

import asyncio
import itertools
import json
import re
import statistics
import time
from dataclasses import dataclass, field

import numpy as np

from benches.cpu_serving.models import VOCABULARY
from benches.cpu_serving.servers import SERVED

TEXT = re.compile(rb'"text": ?"[^"]')
COUNT = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass
class Seen:
    """One request.

    Attributes:
        begin: When it was sent.
        times: When chunks with text came.
        tokens: Of the answer, as the server counts them.
    """

    begin: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True)
class Result:
    """A run.

    Attributes:
        tokens_per_s: Output tokens a second, from the first request's start to the last one's end.
        ttft_ms: Median time to the first token.
        tpot_ms: Median time of a token after the first.
        gaps_ms: All gaps between tokens.
    """

    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    gaps_ms: list[float]


def run(port: int, concurrency: int, requests: int, prompt: int, output: int, seed: int) -> Result:
    """``requests`` of ``prompt`` random tokens in and ``output`` out.

    Raises:
        RuntimeError: An answer was no stream, or not of ``output`` tokens.
    """
    return asyncio.run(_run(port, concurrency, requests, prompt, output, seed))


async def _run(
    port: int, concurrency: int, requests: int, prompt: int, output: int, seed: int
) -> Result:
    noise = np.random.default_rng(seed)
    # Bytes and the end are left out: a token is a word.
    prompts = noise.integers(256, VOCABULARY - 1, (requests, prompt)).tolist()
    waiting = [_body(tokens, output) for tokens in prompts]
    seen: list[Seen] = []

    async def client() -> None:
        while waiting:
            seen.append(await _request(port, waiting.pop()))

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    seconds = time.perf_counter() - begin
    return _result(seen, output, seconds)


def _result(seen: list[Seen], output: int, seconds: float) -> Result:
    for request in seen:
        # A server that lags behind its engine joins tokens: fewer chunks, with larger gaps.
        if request.tokens != output:
            raise RuntimeError(f"{request.tokens} tokens, not {output}")
    pairs = itertools.chain.from_iterable(itertools.pairwise(one.times) for one in seen)
    spans = [(one.times[-1] - one.times[0]) / (output - 1) for one in seen]
    return Result(
        tokens_per_s=len(seen) * output / seconds,
        ttft_ms=statistics.median(one.times[0] - one.begin for one in seen) * 1e3,
        tpot_ms=statistics.median(spans) * 1e3,
        gaps_ms=[(after - before) * 1e3 for before, after in pairs],
    )


def _body(prompt: list[int], output: int) -> bytes:
    asked = {
        "model": SERVED,
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked).encode()


async def _request(port: int, body: bytes) -> Seen:
    seen = Seen(time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await reader.read(2000)).decode(errors="replace"))
        async for line in reader:
            if TEXT.search(line):
                seen.times.append(time.perf_counter())
            if count := COUNT.search(line):
                seen.tokens = int(count[1])
    finally:
        writer.close()
    # Of tokens that show as no text nothing is seen but the end.
    seen.times = seen.times or [time.perf_counter()]
    return seen
