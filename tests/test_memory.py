"""The memory of HTTP processes and the engine stays as it is, however many requests they answer."""

import asyncio
import json
from itertools import count
from pathlib import Path

import pytest

from tests.programs import children, served

WARM_UP, REQUESTS = 2_000, 5_000
CLIENTS = 16
FLAT_KIB = 5 << 10
# The rings: 16 MiB to the scheduler, 4 to each frontend and to the detokenizer, 2 of spans. A page
# of a ring is resident once messages have come that far: a process seems to grow until all are.
RINGS_KIB = 32 << 10
MODEL = "pyengine-demo"
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOL = {"type": "function", "function": {"name": "meet", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
TEXT = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8}
KINDS = (
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"stream": True}),
    ("/v1/completions", TEXT | {"n": 2}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/chat/completions", CHAT | {"response_format": FORMAT}),
    ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}),
    ("/v1/responses", {"model": MODEL, "input": "Who are you?", "max_output_tokens": 8}),
    ("/v1/completions", TEXT | {"temperature": -1}),
    ("/v1/completions", TEXT | {"stream": True, "max_tokens": 500}),  # the client leaves
)
LEAVES = len(KINDS) - 1


async def ask(host: str, port: int, requests: int) -> None:
    """Send requests of all kinds; a client makes its connections anew now and then."""
    numbers = count()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while (number := next(numbers)) < requests:
            kind = number % len(KINDS)
            path, body = KINDS[kind]
            if "prompt" in body:
                body = body | {"prompt": f"{number} {body['prompt']}"}
            data = json.dumps(body).encode()
            fields = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
            writer.write(f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n".encode() + data)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.split()[1] == (b"400" if "temperature" in body else b"200"), head
            if kind == LEAVES:
                writer.close()
                reader, writer = await asyncio.open_connection(host, port)
            elif b"content-length" in head:
                length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
                await reader.readexactly(int(length))
            else:
                await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def resident_kib(pid: int) -> tuple[int, int]:
    """What a process has of its own, and what it shares."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return int(sizes["RssAnon"]), int(sizes["RssShmem"])


@pytest.mark.slow
async def test_memory_stays_flat() -> None:
    simulated = ("--device", "simulated", "--simulated-step-ms", "0")
    quiet = ("--port", "0", "--log-level", "error")
    with served(*quiet, *simulated) as server:
        host, port = server.url().removeprefix("http://").split(":")
        pids = [server.process.pid, *children(server.process.pid)]
        assert len(pids) > 1
        await ask(host, int(port), WARM_UP)
        before = {pid: resident_kib(pid) for pid in pids}
        await ask(host, int(port), REQUESTS)
        for pid, (own, _) in before.items():
            own_now, shared = resident_kib(pid)
            assert own_now - own < FLAT_KIB, f"process {pid} gained {own_now - own} KiB"
            assert shared < RINGS_KIB
