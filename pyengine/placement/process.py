"""The engine in a process of its own: what the service does with the GIL does not slow it down."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys

from pyengine.config import EngineConfig
from pyengine.engine import EngineInfo, Progress, Queues
from pyengine.errors import EngineDeadError
from pyengine.placement import DeathHandler
from pyengine.placement.control import (
    Failed,
    Loading,
    Ready,
    Start,
    decode_from_engine,
    encode,
)

EXIT_TIMEOUT_S = 10.0


class ProcessPlacement:
    """Starts ``engine_main`` and holds its control line; the queues are inherited by descriptor.

    The process ends when this one does, whatever ends it: its control line is then closed by the
    kernel. Nothing is left in any file system.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(
        self, config: EngineConfig, queues: Queues, progress: Progress | None, died: DeathHandler
    ) -> EngineInfo:
        """Spawn the process and wait until its model is loaded."""
        mine, theirs = socket.socketpair()
        scheduler = queues.scheduler.descriptors()
        frontends = [mailbox.descriptors() for mailbox in queues.frontends]
        recorder = queues.recorder.descriptor()
        inherited = [theirs.fileno(), recorder, *scheduler]
        inherited += [fd for pair in frontends for fd in pair]
        with theirs:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - milliseconds, once
                [sys.executable, "-m", "pyengine.placement.engine_main", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._reader, self._writer = await asyncio.open_connection(sock=mine)
        self._writer.write(encode(Start(config, scheduler, frontends, recorder)) + b"\n")
        while True:
            match await self._next():
                case Loading(done, total):
                    if progress is not None:
                        progress(done, total)
                case Ready(info):
                    break
                case Failed() as failed:
                    await self.close()
                    raise failed.error()
                case None:
                    status = await asyncio.to_thread(self.process.wait)
                    await self.close()
                    raise EngineDeadError(f"the engine's process ended while loading ({status})")
        self._watcher = asyncio.create_task(self._watch(died))
        return info

    async def close(self) -> None:
        """Close the control line and wait for the process; kill it if it does not end in time."""
        process, self.process = self.process, None
        if process is None:
            return
        if self._watcher is not None:
            self._watcher.cancel()
        if self._writer is not None:
            self._writer.close()
        try:
            await asyncio.to_thread(process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _watch(self, died: DeathHandler) -> None:
        """Tell ``died`` when the process ends, or says that it failed."""
        message = await self._next()
        if isinstance(message, Failed):
            died(message.error())
            return
        assert self.process is not None
        status = await asyncio.to_thread(self.process.wait)
        died(EngineDeadError(f"the engine's process ended (status {status})"))

    async def _next(self) -> Loading | Ready | Failed | None:
        """The next line, or None at its end."""
        assert self._reader is not None
        with contextlib.suppress(ConnectionError):
            if line := await self._reader.readline():
                return decode_from_engine(line)
        return None
