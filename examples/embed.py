"""A service that answers questions over TCP, with the engine inside the process.

A client sends a question on a line and gets the answer as it comes, ended by an empty line. Run it
to see four clients at once: two are answered, one leaves in the middle, one has no time to wait::

    python examples/embed.py
"""

import asyncio
import contextlib

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import PyengineError, RequestTimeoutError

TIMEOUT_S = 30.0
ESSAY = SamplingParams(max_tokens=1000, ignore_eos=True)


class AnswerService:
    """Answers each client's questions one after the other, all clients' in one batch."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it leaves."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                await self.answer(line.decode(errors="replace").strip(), writer)
        writer.close()

    async def answer(self, question: str, writer: asyncio.StreamWriter) -> None:
        """Stream one answer. An error becomes a line that says what went wrong."""
        messages = [{"role": "user", "content": question}]
        params = (
            ESSAY if question.startswith("Tell me everything") else SamplingParams(temperature=0)
        )
        try:
            # Leaving the block, also because the client has left, aborts what still runs.
            async with self.engine.chat(messages, params, timeout=TIMEOUT_S) as generation:
                async for update in generation:
                    writer.write(update.text.encode())
                    await writer.drain()
        except PyengineError as error:
            writer.write(f"error: {error.message}".encode())
        writer.write(b"\n\n")
        await writer.drain()


async def ask(port: int, question: str) -> str:
    """A client that waits for the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{question}\n".encode())
    answer = await reader.readuntil(b"\n\n")
    writer.close()
    return answer.decode().strip()


async def leave_midway(port: int) -> str:
    """A client that leaves after the first piece of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"Tell me everything about rivers.\n")
    first = await reader.read(1)
    writer.transport.abort()
    return f"got {len(first)} byte and left"


async def in_a_hurry(engine: AsyncEngine) -> str:
    """A caller in this process whose deadline is too short for what it asks."""
    question = [{"role": "user", "content": "Tell me everything about mountains."}]
    try:
        answer = await engine.chat(question, ESSAY, timeout=0.05)
    except RequestTimeoutError as error:
        return error.message
    return answer.text


async def main() -> None:
    """Serve, let the clients come, and look that nothing is left behind."""
    async with AsyncEngine() as engine:
        service = AnswerService(engine)
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            clients = {
                "France": ask(port, "What is the capital of France?"),
                "name": ask(port, "Hello! Who are you?"),
                "left": leave_midway(port),
                "hurry": in_a_hurry(engine),
            }
            for name, answer in zip(clients, await asyncio.gather(*clients.values()), strict=True):
                print(f"{name}: {answer}")
        await engine.drained()
        report = await engine.report()
        print(f"blocks held: {report['held']}, of {report['num_blocks']}")


if __name__ == "__main__":
    asyncio.run(main())
