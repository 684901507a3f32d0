"""The processes of the other ranks, as rank 0 sees them: started, fed with steps, watched, ended.

::

    rank 0's process                               rank 1, 2, ...
    ┌────────────────────────────┐  control line   ┌──────────────────────┐
    │ Ranks ── a thread a rank ──┼─────────────────┤ rank_main            │
    │   └────── steps ───────────┼── ring ───────► │   follow: its runner │
    └────────────────────────────┘                 └──────────────────────┘
"""

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyengine._core import Mailbox, MailboxClosed, MailboxFull
from pyengine.actors.actor import logger
from pyengine.distributed.rank_messages import (
    Begin,
    FromRank,
    Here,
    Meet,
    Ready,
    decode_from_rank,
)
from pyengine.distributed.wire import RING_BYTES, Kind, Range, messages
from pyengine.errors import EngineDeadError, PyengineError
from pyengine.model.progress import Progress
from pyengine.placement.children import EXIT_TIMEOUT_S, Failed, Loading, encode_line, spawn
from pyengine.settings.config import EngineConfig

FULL_WAIT_S = 0.0005

SILENCE_S = 900.0
"""A rank that sends nothing for so long while it starts is taken to hang; compiling FlashInfer's
kernels takes less."""


class Rank:
    """One other rank's process.

    Attributes:
        process: The process.
        ring: Where its steps go.
        here: Whether it has imported torch and attached the ring.
        ready: Whether it has loaded its weights.
        loaded: Bytes of weights that it has read.
    """

    def __init__(self, number: int, config: EngineConfig) -> None:
        """Start it."""
        self.number = number
        self.ring = Mailbox(RING_BYTES)
        self.here = self.ready = False
        self.loaded = 0
        steps = self.ring.descriptors()
        self.process, self.line = spawn("pyengine.distributed.rank_main", steps)
        self.send(Begin(config, number, steps))

    def send(self, message: msgspec.Struct) -> None:
        """Send a message on the control line.

        Raises:
            EngineDeadError: The rank has died.
        """
        try:
            self.line.sendall(encode_line(message))
        except OSError as error:
            raise EngineDeadError(f"rank {self.number} does not listen: {error}") from error

    def listen(self, on_message: Callable[["Rank", FromRank], None]) -> PyengineError:
        """Pass its messages to ``on_message`` until its line ends; returns why the rank ended.

        A rank that sends nothing for :data:`SILENCE_S` before it is ready is killed: the other
        ranks would wait for it forever.
        """
        self.line.settimeout(SILENCE_S)
        # The line is reset, not closed, if the rank dies with unread messages.
        with self.line.makefile("rb") as lines, suppress(ConnectionError):
            try:
                for line in lines:
                    message = decode_from_rank(line)
                    if isinstance(message, Failed):
                        error = message.error()
                        why = f"rank {self.number}: {error.message}"
                        return type(error)(why, param=error.param)
                    if isinstance(message, Ready):
                        self.line.settimeout(None)  # from now on it sends only a failure
                    on_message(self, message)
            except TimeoutError:
                self.process.kill()
                return EngineDeadError(
                    f"rank {self.number} (process {self.process.pid}) hangs: it sent nothing for "
                    f"{SILENCE_S:g} s while it started"
                )
        try:
            status = self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return EngineDeadError(f"rank {self.number} closed its control line, but did not end")
        return EngineDeadError(f"rank {self.number} (process {self.process.pid}) ended: {status}")

    def end(self) -> None:
        """Close its ring and line, and wait for the process; kill it if it does not end in time."""
        self.ring.close()
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("rank %d has closed its line", self.number)
        try:
            self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ranks:
    """The other ranks, as rank 0 sees them.

    The first failure of any ends all: :meth:`check` raises it. One thread at a time, but for
    ``failure`` and ``close``.

    Attributes:
        failure: The first error that ended a rank.
        size: Number of ranks, rank 0 counted in.
        on_failure: Called at the first failure, on the thread that listens to the rank.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start the processes."""
        self.failure: PyengineError | None = None
        self.size = config.tensor_parallel
        self.on_failure: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._ranks: list[Rank] = []
        self._threads: list[threading.Thread] = []
        try:
            for number in range(1, self.size):
                self._ranks.append(Rank(number, config))
        except BaseException:
            self.close()
            raise
        for rank in self._ranks:
            thread = threading.Thread(
                target=self._listen, args=[rank], name=f"pyengine-rank-{rank.number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [rank.process.pid for rank in self._ranks]

    def meet(self, port: int) -> None:
        """Wait until all ranks have started, then let them connect to the store at ``port``.

        Raises:
            PyengineError: A rank failed.
        """
        self._wait(lambda rank: rank.here)
        for rank in self._ranks:
            rank.send(Meet(port))

    def progress(self, report: Progress) -> Progress:
        """A callback for rank 0's bytes; it calls ``report`` with the bytes of all ranks."""

        def both(done: int, total: int) -> None:
            others = sum(rank.loaded for rank in self._ranks)
            report(min(done + others, total * self.size), total * self.size)

        return both

    def wait_ready(self) -> None:
        """Wait until all ranks have loaded.

        Raises:
            PyengineError: A rank failed.
        """
        self._wait(lambda rank: rank.ready)

    def check(self) -> None:
        """Raise the error that ended a rank, if there is one."""
        if self.failure is not None:
            raise self.failure

    def blame(self, error: BaseException) -> PyengineError:
        """The error to raise for ``error``: that of the rank that failed first, else ``error``."""
        # An exchange fails a little before the end of the other rank's process is known.
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, 2.0)
        return self.failure or EngineDeadError(f"rank 0: {type(error).__name__}: {error}")

    def send(self, kind: Kind, ranges: list[Range], memory: NDArray[np.uint8]) -> None:
        """Send ``ranges`` of step buffers to all ranks, which then do ``kind``.

        Raises:
            PyengineError: A rank has died.
        """
        for message in messages(kind, ranges, memory):
            self.send_message(message)

    def send_message(self, message: bytes | bytearray) -> None:
        """Send a message to all ranks, behind those that they were sent before.

        Raises:
            PyengineError: A rank has died.
        """
        for rank in self._ranks:
            while True:
                try:
                    rank.ring.send(message)
                    break
                except MailboxFull:
                    self.check()
                    time.sleep(FULL_WAIT_S)
                except MailboxClosed as error:
                    raise self.blame(error) from error

    def close(self) -> None:
        """End all ranks. Idempotent; any thread."""
        self._closing = True
        for rank in self._ranks:
            rank.ring.close()
        for rank in self._ranks:
            rank.end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for rank in self._ranks:
            rank.line.close()

    def _wait(self, there: Callable[[Rank], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or all(map(there, self._ranks)))
        self.check()

    def _listen(self, rank: Rank) -> None:
        error = rank.listen(self._on_message)
        with self._changed:
            first = self.failure is None and not self._closing
            if first:
                self.failure = error
            self._changed.notify_all()
        if first:
            if all(other.ready for other in self._ranks):
                logger.error("the engine ends: %s", error)
            if self.on_failure is not None:
                self.on_failure()

    def _on_message(self, rank: Rank, message: FromRank) -> None:
        with self._changed:
            match message:
                case Here():
                    rank.here = True
                case Ready():
                    rank.ready = True
                case Loading(done):
                    rank.loaded = done
            self._changed.notify_all()


def rank_config(config: EngineConfig, cores: int) -> EngineConfig:
    """``config`` for one of its ranks: ranks that compute with threads divide them."""
    if "threads" in config.device_spec.lacks:
        return config
    return replace(config, threads=config.threads or max(1, cores // config.tensor_parallel))
