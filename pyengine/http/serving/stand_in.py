"""Accepts in the place of a worker whose loop does not run, and passes on to the others.

::

    client ──► socket of worker 0, which does not run
                    └─► supervisor ──► the port again, where the kernel chooses another socket
"""

import asyncio
import contextlib
import socket

from pyengine.http.serving.sockets import reachable

_PIECE = 1 << 16
_PASSING: set["asyncio.Task[None]"] = set()


async def stand_in(listener: socket.socket) -> None:
    """Accept on ``listener`` until cancelled; what was accepted goes on to its end."""
    listener.setblocking(False)  # as the worker has it
    host, port = listener.getsockname()[:2]
    loop = asyncio.get_running_loop()
    while True:
        client, _ = await loop.sock_accept(listener)
        task = asyncio.create_task(_passed(client, reachable(host), port))
        _PASSING.add(task)
        task.add_done_callback(_PASSING.discard)


async def _passed(client: socket.socket, host: str, port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError))  # either side has left
        ends = []
        for where in ({"sock": client}, {"host": host, "port": port}):
            reader, writer = await asyncio.open_connection(**where)
            stack.callback(writer.close)
            ends.append((reader, writer))
        (asking, answered), (answering, asked) = ends
        await asyncio.gather(_pass(asking, asked), _pass(answering, answered))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
