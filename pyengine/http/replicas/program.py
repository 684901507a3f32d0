"""A program that this process started under a control line: its readiness, its output, its end."""

import asyncio
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from pyengine.http.replicas.program_main import Run, Stop
from pyengine.http.serving.notify import VARIABLE
from pyengine.placement.child import Child

_CREDENTIALS = struct.Struct("3i")  # process, user and group, as the kernel names a sender
_LONGEST_WORD = 4096


class Program:
    """One program. Used on the loop that started it.

    Attributes:
        child: Its process.
    """

    def __init__(self, child: Child, words: socket.socket, reading: "asyncio.Task[None]") -> None:
        self.child = child
        self._words = words
        self._reading = reading
        self._ended = asyncio.create_task(self._wait_for_end())

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Sequence[str],
        show: Callable[[str], None],
        *,
        quiet: bool = False,
        environment: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
    ) -> Self:
        """Run ``python -m module arguments``.

        Args:
            module: The program.
            arguments: The arguments of its command line.
            show: Called with each line that it prints.
            quiet: Drop its stdout, and show stderr only.
            environment: Variables beside this process's.
            cores: The CPUs that it may use; None is all.
        """
        words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        words.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        words.setblocking(False)
        name = f"pyengine-{secrets.token_hex(16)}"
        words.bind(f"\0{name}")
        reading, writing = os.pipe()
        try:
            child = await Child.start("pyengine.http.replicas.program_main", [writing])
        finally:
            os.close(writing)
        variables = {**(environment or {}), VARIABLE: f"@{name}"}
        numbers = None if cores is None else list(cores)
        child.send(Run(module, list(arguments), variables, writing, quiet, numbers))
        return cls(child, words, asyncio.create_task(_show_lines(reading, show)))

    async def ready(self) -> str | None:
        """Wait until the program says that it is ready; its URL, or None if it ends before."""
        word = asyncio.create_task(self._ready())
        await asyncio.wait({word, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if word.done():
            return word.result()
        word.cancel()
        return None

    async def _ready(self) -> str:
        while True:
            variables = await self._next_word()
            if variables.get("READY") == "1":
                return variables["X_URL"]

    async def _next_word(self) -> dict[str, str]:
        """Reads the program's next sd_notify message; messages of other processes are dropped."""
        loop = asyncio.get_running_loop()
        while True:
            came = asyncio.Event()
            loop.add_reader(self._words, came.set)
            try:
                await came.wait()
            finally:
                loop.remove_reader(self._words)
            data, ancillary, _, _ = self._words.recvmsg(
                _LONGEST_WORD, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
            if any(_CREDENTIALS.unpack(one)[0] == self.child.process.pid for *_, one in ancillary):
                lines = data.decode(errors="replace").splitlines()
                return dict(line.split("=", 1) for line in lines if "=" in line)

    def stop(self) -> None:
        """Ask the program to end; a second time, to hurry. Dropped if it has ended."""
        self.child.send(Stop())

    def kill(self) -> None:
        """End it at once."""
        self.child.process.kill()

    async def ended(self) -> int:
        """Wait until the program has ended; its exit status."""
        return await asyncio.shield(self._ended)

    async def _wait_for_end(self) -> int:
        while await self.child.receive():
            pass
        status = await self.child.ended()
        await self._reading
        self._words.close()
        return status


async def _show_lines(descriptor: int, show: Callable[[str], None]) -> None:
    """Read what a program prints to the end."""
    reader = asyncio.StreamReader(limit=sys.maxsize)  # a logged prompt is one line
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    while line := await reader.readline():
        show(line.decode(errors="replace").rstrip())
