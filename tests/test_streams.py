"""Two hundred streams at once over HTTP, half of them dropped by the client midway."""

import asyncio
import json

from pyengine import AsyncEngine
from pyengine.http.server import HttpServer

STREAMS = 200
BODY = {
    "model": "pyengine-demo",
    "messages": [{"role": "user", "content": "Count from 1 to 20."}],
    "max_tokens": 40,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def stream(port: int, drop_after: int | None) -> list[dict[str, object]]:
    """The chunks of one streamed answer; the connection is dropped after so many, if given."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(BODY).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    chunks: list[dict[str, object]] = []
    try:
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                chunks.append(json.loads(line[6:]))
            if drop_after is not None and len(chunks) >= drop_after:
                writer.transport.abort()
                break
    finally:
        writer.close()
    return chunks


async def test_two_hundred_streams_half_of_them_dropped() -> None:
    async with AsyncEngine(mode="server", kv_cache_mib=128) as engine:
        server = HttpServer(engine, port=0)
        port = int((await server.start()).rsplit(":", 1)[1])
        answers = await asyncio.gather(
            *[stream(port, drop_after=3 if index % 2 else None) for index in range(STREAMS)]
        )
        finished = answers[::2]
        texts = set()
        for chunks in finished:
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            texts.add("".join(choice["delta"].get("content") or "" for choice in choices))
            assert choices[-1]["finish_reason"] == "length"
            assert chunks[-1]["usage"]["completion_tokens"] == 40
        assert len(texts) == 1, "greedy answers to one question are one text"

        await engine.drained()
        report = await engine.report()
        assert report["running"] == report["waiting"] == report["held"] == 0
        assert report["free"] + report["cached"] == report["num_blocks"]
        await server.stop()
