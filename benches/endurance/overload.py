"""More requests than a server can take: how they are answered, and how soon they are refused."""

import asyncio
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import uvloop

from benches.endurance.servers import TEXT


class Single(asyncio.Protocol):
    """A connection with one request on it: its status, and seconds from sending it to its end."""

    def __init__(self, request: bytes, ended: asyncio.Future[tuple[str, float]]) -> None:
        self._request, self._ended = request, ended
        self._read = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        sender: Any = transport
        sender.write(self._request)
        self._sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        """Keep the answer."""
        self._read += data

    def connection_lost(self, _: Exception | None) -> None:
        """The answer has ended."""
        self._ended.set_result(
            (self._read[9:12].decode() or "lost", time.perf_counter() - self._sent)
        )


async def send_all(
    url: str, path: str, body: bytes, requests: int, over_s: float, at: float
) -> list[tuple[str, float]]:
    """Send requests over a time, each on its own connection, from a moment of the clock on."""
    host, port = url.removeprefix("http://").split(":")
    fields = f"host: {host}\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"
    request = head.encode() + body
    loop = asyncio.get_running_loop()

    async def timed(number: int) -> tuple[str, float]:
        await asyncio.sleep(at + over_s * number / requests - time.monotonic())
        ended: asyncio.Future[tuple[str, float]] = loop.create_future()
        try:
            await loop.create_connection(lambda: Single(request, ended), host, int(port))
        except OSError as error:
            return type(error).__name__, 0.0
        return await ended

    return await asyncio.gather(*map(timed, range(requests)))


def send(*arguments: Any) -> list[tuple[str, float]]:
    """As :func:`send_all`, in a process of its own."""
    return uvloop.run(send_all(*arguments))


def overload(url: str, requests: int, over_s: float, clients: int) -> dict[str, Any]:
    """Send requests from several processes: their ends, and the times of the refused.

    One client process alone takes longer to send and read them than the server to refuse them.
    """
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:

        def all_of(path: str, body: bytes) -> list[tuple[str, float]]:
            load = url, path, body, requests // clients, over_s, time.monotonic() + 2
            parts = [pool.submit(send, *load) for _ in range(clients)]
            return [answer for part in parts for answer in part.result()]

        floor = all_of("/health", b"")
        answers = all_of("/v1/completions", json.dumps(TEXT | {"ignore_eos": True}).encode())
    refused = sorted(seconds for status, seconds in answers if status in ("429", "503"))
    return {
        "answers": Counter(status for status, _ in answers),
        "refused_p50_s": median(refused or [0]),
        "refused_max_s": max(refused, default=0),
        "health_p50_s": median(seconds for _, seconds in floor),
        "health_max_s": max(seconds for _, seconds in floor),
    }
