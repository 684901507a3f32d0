"""The engine in a process of its own, which does not share the GIL with the service.

::

    start ──► running ──► ended ──► down ──► start another on the same queues ──► up ──► running
                 │          ▲ └── too often within a minute, or it cannot be loaded ──► died
                 ├─ hung ───┘ killed
                 └─ sleep: killed ──► asleep ──► wake_up: start another on the same queues ──► up
"""

import asyncio
import contextlib
import socket
import subprocess

from pyengine.actors.actor import logger
from pyengine.actors.heartbeat import NOTICE_S
from pyengine.errors import EngineDeadError, PyengineError
from pyengine.logs import configured
from pyengine.model.progress import Progress
from pyengine.placement.child import Child
from pyengine.placement.children import Failed, Loading, encode_line, spawn
from pyengine.placement.engine_messages import Ready, Start, decode_from_engine
from pyengine.placement.protocol import FrontendSlot, Watcher
from pyengine.placement.restarts import MAX_DEATHS, RestartLimit
from pyengine.queues import EngineInfo, Queues
from pyengine.settings.config import EngineConfig

ENGINE_MAIN = "pyengine.placement.engine_main"
# How often the signs of life are read.
WATCH_S = 0.5


class ProcessPlacement:
    """Starts ``engine_main``, watches it, kills it if it hangs, and restarts it if it dies.

    The process inherits the queues by descriptor, and ends when this process ends, however it does.
    Nothing is left in any file system.

    Attributes:
        queues: The engine's; the process that starts the engine has the last frontend's slot.
        child: The engine's process.
        watchers: Called when the engine ends and starts; :meth:`start` adds one.
    """

    def __init__(self, frontends: int = 1) -> None:
        self.queues = Queues.make(frontends)
        self.child: Child | None = None
        self.watchers: list[Watcher] = []
        self._task: asyncio.Task[None] | None = None
        self._config: EngineConfig | None = None
        self._asleep = False
        self._begun: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._switching = asyncio.Lock()

    def frontend_slot(self) -> FrontendSlot:
        """The slot of the last frontend."""
        return FrontendSlot.last(self.queues)

    def renew_queues(self) -> None:
        """Make queues anew, for a forked process."""
        self.queues = Queues.make(len(self.queues.frontends))

    def begin(self, config: EngineConfig) -> None:
        """Start the process before :meth:`start`, which then waits for it.

        It loads ``config`` while this process imports what it needs itself. No loop need run yet.
        """
        self._begun = self._run(config)

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Spawn the process and wait until its model is loaded."""
        info = await self._spawn(config, progress)
        self._config = config
        self.watchers.append(watcher)
        self._task = asyncio.create_task(self._watch(config))
        return info

    async def sleep(self) -> None:
        """Kill the process: the next one goes on from the queues as after a death.

        An orderly end would close the queues; a killed process gives back all it had as well.
        """
        async with self._switching:
            task = self._task
            if self._asleep:
                return
            if task is None or task.done() or self.child is None:
                raise EngineDeadError("the engine does not run, so it cannot sleep")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.child.process.kill()
            await self.child.ended()
            self.queues.heartbeat.reset()
            self._asleep = True
            for watcher in self.watchers:
                watcher.down(True)

    async def wake_up(self) -> None:
        """Spawn a process on the same queues and wait until its model is loaded."""
        async with self._switching:
            if not self._asleep:
                return
            assert self._config is not None
            info = await self._spawn(self._config, None)
            self._asleep = False
            self._task = asyncio.create_task(self._watch(self._config))
            for watcher in self.watchers:
                watcher.up(info)

    def cleared(self) -> None:
        """The frontend of this process goes on; others' frontends have an order of their own."""
        for watcher in self.watchers:
            watcher.go_on()

    async def close(self) -> None:
        """Close the control line and wait for the process; kill it if it does not end in time.

        A process that does not run gets no time.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        child, self.child = self.child, None
        if self._begun is not None:
            child, self._begun = await Child.of(*self._begun), None
        if child is not None:
            if self.queues.heartbeat.silent_s >= NOTICE_S:
                child.process.kill()
            await child.ended()

    async def _spawn(self, config: EngineConfig, progress: Progress | None) -> EngineInfo:
        begun, self._begun = self._begun, None
        child = await Child.of(*(begun or self._run(config)))
        self.child = child
        while True:
            match await _next(child):
                case Loading(done, total):
                    if progress is not None:
                        progress(done, total)
                case Ready(info):
                    return info
                case Failed() as failed:
                    await child.ended()
                    raise failed.error()
                case None:
                    status = await child.ended()
                    text = f"the engine's process ended while loading (status {status})"
                    raise EngineDeadError(text)

    def _run(self, config: EngineConfig) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        """Start a process on the queues; returns it, and this side's end of its line."""
        queues = self.queues
        queues.heartbeat.reset()
        scheduler = queues.scheduler.descriptors()
        frontends = [mailbox.descriptors() for mailbox in queues.frontends]
        recorder, heartbeat = queues.recorder.descriptor(), queues.heartbeat.descriptor()
        inherited = [recorder, heartbeat, *scheduler, *(fd for pair in frontends for fd in pair)]
        process, line = spawn(ENGINE_MAIN, inherited)
        start = Start(config, scheduler, frontends, recorder, heartbeat, configured())
        with contextlib.suppress(ConnectionError):  # it has died; its line says so
            line.sendall(encode_line(start))
        return process, line

    async def _watch(self, config: EngineConfig) -> None:
        restarts = RestartLimit()
        while True:
            error = await self._death(config.step_timeout_s)
            for watcher in self.watchers:
                watcher.down(False)
            while True:
                if self.queues.scheduler.closed:
                    self._give_up(error)  # the Detokenizer failed, and closed the queues
                    return
                if not await restarts.allows_another():
                    text = f"it died more than {MAX_DEATHS} times within a minute: {error}"
                    self._give_up(EngineDeadError(text))
                    return
                logger.error("the engine died; restarting it: %s", error)
                try:
                    info = await self._spawn(config, None)
                except EngineDeadError as failure:
                    error = failure
                    continue
                except (PyengineError, OSError) as failure:
                    self._give_up(failure)
                    return
                self.queues.heartbeat.count_restart()
                for watcher in self.watchers:
                    watcher.up(info)
                break

    def _give_up(self, error: Exception) -> None:
        for watcher in self.watchers:
            watcher.died(error)

    async def _death(self, step_timeout_s: float) -> PyengineError:
        """Wait for the process to end, and kill it if it hangs; returns why it died."""
        child = self.child
        assert child is not None
        heartbeat = self.queues.heartbeat
        hung = None
        ending = asyncio.ensure_future(_next(child))
        try:
            while not (await asyncio.wait({ending}, timeout=WATCH_S))[0]:
                if hung is None and heartbeat.hung(step_timeout_s):
                    hung = heartbeat.trouble(step_timeout_s)
                    logger.error("the engine hangs, and is killed: %s", hung)
                    child.process.kill()
        finally:
            ending.cancel()
        message = ending.result()
        status = await child.ended()
        if isinstance(message, Failed):
            return message.error()
        if hung is not None:
            return EngineDeadError(f"it was hung: {hung}")
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return EngineDeadError(f"its process {how}")


async def _next(child: Child) -> Loading | Ready | Failed | None:
    """The next message of the engine's process; None at the end of the line."""
    with contextlib.suppress(ConnectionError):
        if line := await child.receive():
            return decode_from_engine(line)
    return None
