"""Signs of life of an engine and its load, in shared memory that all of its processes read.

::

    engine's process   beat ──► when a thread of the process last ran, so that it is not stopped
    scheduler          step ──► when the step under way began, or 0
    placement          restarts ──► engines that took the place of a dead one
    each frontend      load ──► requests that it works on
"""

import mmap
import os
import threading
import time
from typing import Self

BEAT_S = 0.25
# A process that has not run for so long does not respond.
NOTICE_S = 1.5
# One that has not run for so long is hung, whatever a step may take.
HUNG_S = 30.0

_BEAT, _STEP, _RESTARTS, _LOADS = range(4)
_WORD = 8


class Heartbeat:
    """Words with one writer each. Any thread and process may read.

    A word is aligned, so that the machine reads and writes it whole. Times are those of
    ``time.monotonic_ns()``, which all processes of a machine share.
    """

    def __init__(self, descriptor: int) -> None:
        """The words behind ``descriptor``, which is owned from here on."""
        self._descriptor = descriptor
        self._words = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size)).cast("Q")

    @classmethod
    def make(cls, frontends: int = 1) -> Self:
        """New words, of an engine with ``frontends`` frontends that has not been started."""
        descriptor = os.memfd_create("pyengine-heartbeat")
        os.ftruncate(descriptor, (_LOADS + frontends) * _WORD)
        return cls(descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def descriptor(self) -> int:
        """The descriptor, for a child to inherit."""
        return self._descriptor

    def beat(self) -> None:
        """The process runs."""
        self._words[_BEAT] = time.monotonic_ns()

    def keep_beating(self) -> None:
        """Beat on a thread of its own as long as the process lives."""

        def run() -> None:
            while True:
                self.beat()
                time.sleep(BEAT_S)

        self.beat()
        threading.Thread(target=run, name="pyengine-heartbeat", daemon=True).start()

    def begin_step(self) -> None:
        """The scheduler begins a step."""
        self._words[_STEP] = time.monotonic_ns()

    def rest(self) -> None:
        """The scheduler has no step to do."""
        self._words[_STEP] = 0

    def reset(self) -> None:
        """The engine is being started; it has no signs of life until it runs."""
        self._words[_BEAT] = self._words[_STEP] = 0

    def count_restart(self) -> None:
        """An engine has taken the place of a dead one."""
        self._words[_RESTARTS] += 1

    def set_load(self, frontend: int, requests: int) -> None:
        """Note how many requests the frontend with that number works on."""
        self._words[_LOADS + frontend] = requests

    def load(self) -> int:
        """Requests that all frontends work on."""
        return sum(self._words[_LOADS:])

    @property
    def restarts(self) -> int:
        """Engines that took the place of a dead one."""
        return self._words[_RESTARTS]

    @property
    def silent_s(self) -> float:
        """Seconds since the process last ran; 0 for an engine whose process does not beat."""
        return self._age_s(_BEAT)

    @property
    def step_s(self) -> float:
        """Seconds since the step under way began; 0 if there is none."""
        return self._age_s(_STEP)

    def _age_s(self, word: int) -> float:
        since = self._words[word]
        return max(0, time.monotonic_ns() - since) / 1e9 if since else 0.0

    def trouble(self, step_timeout_s: float) -> str | None:
        """A sentence on how the engine fails to respond; None if it responds."""
        if (silent := self.silent_s) >= NOTICE_S:
            return f"it has not run for {silent:.0f} seconds"
        if (step := self.step_s) >= step_timeout_s:
            return f"a step has taken {step:.0f} seconds so far"
        return None

    def hung(self, step_timeout_s: float) -> bool:
        """Whether the engine is not expected to respond again."""
        return self.silent_s >= min(HUNG_S, step_timeout_s) or self.step_s >= step_timeout_s
