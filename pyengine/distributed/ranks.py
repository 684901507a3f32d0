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
from pyengine.model.runner import Progress
from pyengine.placement.children import EXIT_TIMEOUT_S, Failed, Loading, encode_line, spawn
from pyengine.settings.config import EngineConfig

FULL_WAIT_S = 0.0005

SILENCE_S = 900.0
"""A rank that starts says something more often than that, be it that it compiles FlashInfer's
kernels meanwhile; one that does not hangs."""


class Rank:
    """One other rank's process.

    Attributes:
        process: The process.
        ring: Where its steps go.
        here: Whether it has imported torch.
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
        self.say(Begin(config, number, steps))

    def say(self, message: msgspec.Struct) -> None:
        """Send one line.

        Raises:
            EngineDeadError: It has died.
        """
        try:
            self.line.sendall(encode_line(message))
        except OSError as error:
            raise EngineDeadError(f"rank {self.number} does not listen: {error}") from error

    def hear(self, heard: Callable[["Rank", FromRank], None]) -> PyengineError:
        """Hand on what it says until its line ends; what it died of.

        One that says nothing for :data:`SILENCE_S` before it is ready is ended: what waits for it,
        here or in others, waits for a process that goes on.
        """
        self.line.settimeout(SILENCE_S)
        # The line is reset, not closed, if it dies before it has read what it was told.
        with self.line.makefile("rb") as lines, suppress(ConnectionError):
            try:
                for line in lines:
                    message = decode_from_rank(line)
                    if isinstance(message, Failed):
                        error = message.error()
                        why = f"rank {self.number}: {error.message}"
                        return type(error)(why, param=error.param)
                    if isinstance(message, Ready):
                        self.line.settimeout(None)  # from now on it speaks only if it fails
                    heard(self, message)
            except TimeoutError:
                self.process.kill()
                return EngineDeadError(
                    f"rank {self.number} (process {self.process.pid}) hangs: it has said nothing "
                    f"for {SILENCE_S:g} s while it started"
                )
        try:
            status = self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return EngineDeadError(f"rank {self.number} closed its line, and goes on")
        return EngineDeadError(f"rank {self.number} (process {self.process.pid}) ended: {status}")

    def end(self) -> None:
        """Tell it to end, and see that it does."""
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
    """All ranks but this one, which is 0. What fails in any of them is in ``failure``.

    The first failure ends all: :meth:`check` raises it. One thread at a time, but for ``failure``
    and ``close``.

    Attributes:
        failure: What ended a rank, once one has.
        size: All ranks together.
        on_failure: Called with the first failure, on a thread of our own.
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
        """Of the processes."""
        return [rank.process.pid for rank in self._ranks]

    def meet(self, port: int) -> None:
        """Wait until all are there, and send them to the store at ``port``.

        Raises:
            PyengineError: One is not.
        """
        self._wait(lambda rank: rank.here)
        for rank in self._ranks:
            rank.say(Meet(port))

    def progress(self, told: Progress) -> Progress:
        """``told`` of this rank's bytes and theirs together; of all ranks each reads a share."""

        def both(done: int, total: int) -> None:
            others = sum(rank.loaded for rank in self._ranks)
            told(min(done + others, total * self.size), total * self.size)

        return both

    def wait_ready(self) -> None:
        """Wait until all have loaded.

        Raises:
            PyengineError: One cannot.
        """
        self._wait(lambda rank: rank.ready)

    def check(self) -> None:
        """Raise what ended a rank, if one has."""
        if self.failure is not None:
            raise self.failure

    def blame(self, error: BaseException) -> PyengineError:
        """Why this rank cannot go on: what ended another, if that is so, else ``error``."""
        # What is exchanged fails a little before it is known that the other's process has ended.
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, 2.0)
        return self.failure or EngineDeadError(f"rank 0: {type(error).__name__}: {error}")

    def send(self, kind: Kind, ranges: list[Range], memory: NDArray[np.uint8]) -> None:
        """Send ``ranges`` of step buffers to all of them, who go on to ``kind`` with it.

        Raises:
            PyengineError: One has died.
        """
        for message in messages(kind, ranges, memory):
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
        """End them all. Idempotent; any thread."""
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
        error = rank.hear(self._heard)
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

    def _heard(self, rank: Rank, message: FromRank) -> None:
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
    """``config`` for one of its ranks: on the CPU they divide the threads among them."""
    threads = config.threads or max(1, cores // config.tensor_parallel)
    return replace(config, threads=threads) if config.device == "cpu" else config
