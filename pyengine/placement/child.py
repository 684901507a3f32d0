"""A child process and the control line to it, for an asyncio loop."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from pyengine.placement.children import EXIT_TIMEOUT_S, encode_line, spawn


async def open_line(line: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Returns the two directions of a control line, for the running loop.

    A message may have any length: the other end is a process of this server's.
    """
    return await asyncio.open_connection(sock=line, limit=sys.maxsize)


class Child:
    """A process that runs one of pyengine's modules, and this side's end of its control line.

    It ends when this process ends, however it does: the operating system closes the line then.

    Attributes:
        process: The process.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, module: str, inherited: Sequence[int]) -> "Child":
        """Run ``module`` with its end of the line as argument; it inherits the descriptors."""
        return await cls.of(*spawn(module, inherited))  # milliseconds, once

    @classmethod
    async def of(cls, process: "subprocess.Popen[bytes]", line: socket.socket) -> "Child":
        """A process that was spawned before, and this side's end of its line."""
        return cls(process, *await open_line(line))

    def send(self, message: msgspec.Struct) -> None:
        """Send one message; dropped if the process has died."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(encode_line(message))

    async def receive(self) -> bytes:
        """The next line, or ``b""`` at the end."""
        with contextlib.suppress(ConnectionError):
            return await self._reader.readline()
        return b""

    async def ended(self) -> int:
        """Close the line, wait for the process to end, and return its exit status.

        A process that does not end in time is killed.
        """
        self._writer.close()
        try:
            return await asyncio.to_thread(self.process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return await asyncio.to_thread(self.process.wait)
