"""Offering requests to a server over HTTP, and what each of them saw.

Requests are text completions of token ids, streamed, with ``ignore_eos``: pyengine, vLLM, SGLang
and llama.cpp take them. Everything is on one asyncio loop.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from pyengine.errors import ConfigError
from pyengine.profiling.workload import Job


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        url: Its address, without ``/v1``.
        model: The model that requests name.
        max_context: The longest prompt and answer together, where the server tells.
        api_key: What clients say to be let in.
    """

    url: str
    model: str
    max_context: int | None = None
    api_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass
class Seen:
    """A request as its client saw it; times are seconds from the beginning of the run.

    Attributes:
        prompt_tokens: That were sent.
        begin: When it was sent.
        chunks: When text came.
        texts: What came.
        output_tokens: That the server says it wrote; without that, chunks.
        error: Why it failed; None where it did not.
    """

    prompt_tokens: int
    begin: float
    chunks: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    output_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.chunks[0] - self.begin

    @property
    def latency(self) -> float:
        """Seconds to the last text."""
        return self.chunks[-1] - self.begin

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None where there is no other."""
        others = self.output_tokens - 1
        return (self.chunks[-1] - self.chunks[0]) / others if others > 0 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between texts."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]


@dataclass(frozen=True)
class Run:
    """A run against one server: what all requests saw, and how long all of it took."""

    seen: list[Seen]
    seconds: float


class _Choice(msgspec.Struct):
    text: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk)


async def target(url: str, model: str | None, api_key: str | None) -> Target:
    """The server at ``url``, asked which model it serves.

    Raises:
        ConfigError: It does not answer, or serves another model.
    """
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"give a URL such as http://127.0.0.1:8000, not {url!r}")
    found = Target(url, model or "", api_key=api_key)
    try:
        async with httpx.AsyncClient(headers=found.headers, timeout=30) as client:
            answer = (await client.get(f"{url}/v1/models")).raise_for_status().json()
        models: list[dict[str, Any]] = answer["data"]
        served = {each["id"]: each.get("max_model_len") for each in models}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{url}/v1/models does not tell what is served: {error!r}") from None
    if model is None and not served:
        raise ConfigError(f"{url} serves no model")
    model = model or next(iter(served))
    if model not in served:
        raise ConfigError(f"{url} serves {', '.join(served)}, not {model}")
    return Target(url, model, served[model], api_key)


async def offer(target: Target, jobs: Sequence[Job], concurrency: int | None = None) -> Run:
    """Send each job at its time, or later where ``concurrency`` requests run already.

    A request that fails is among those seen, with its error; none is sent again.
    """
    limit: AbstractAsyncContextManager[Any] = nullcontext()
    if concurrency is not None:
        limit = asyncio.Semaphore(concurrency)
    connections = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        headers=target.headers, timeout=None, limits=connections
    ) as client:
        start = time.perf_counter()

        async def send(job: Job) -> Seen:
            async with limit:
                return await _request(client, target, job, start)

        tasks = []
        for job in jobs:
            await asyncio.sleep(max(start + job.arrival_s - time.perf_counter(), 0.0))
            tasks.append(asyncio.create_task(send(job)))
        seen = await asyncio.gather(*tasks)
        return Run(list(seen), time.perf_counter() - start)


async def _request(client: httpx.AsyncClient, target: Target, job: Job, start: float) -> Seen:
    body = {
        "model": target.model,
        "prompt": job.prompt,
        "max_tokens": job.answer_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    seen = Seen(len(job.prompt), time.perf_counter() - start)
    try:
        async with client.stream("POST", f"{target.url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                seen.error = f"{answer.status_code}: {text[:300]}"
                return seen
            async for line in answer.aiter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    _take(seen, _chunk.decode(data), time.perf_counter() - start)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        seen.error = repr(error)
        return seen
    if not seen.chunks:
        seen.error = "no text came"
    seen.output_tokens = seen.output_tokens or len(seen.chunks)
    return seen


def _take(seen: Seen, chunk: _Chunk, now: float) -> None:
    if text := "".join(choice.text or "" for choice in chunk.choices):
        seen.chunks.append(now)
        seen.texts.append(text)
    if chunk.usage is not None:
        seen.output_tokens = chunk.usage.completion_tokens
