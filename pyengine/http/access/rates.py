"""How much each key has used within the last minute, shared by all HTTP workers.

A leaky bucket per key and kind: what is used fills it, and it drains at the key's rate. While it is
full, requests are refused, and the bucket's level tells how long it takes to drain.

::

    level ┤      ╭╮ used                    full at one minute's worth: refused,
    full  ┼┄┄┄┄┄╭╯╰╮┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄       Retry-After is the time until it is below
          │   ╭─╯  ╰─╮ drains at limit / 60 s
          └───────────────────────────► t

Tokens are charged when they are known: those of a prompt when it is submitted, those of an answer
when it ends. The level may so rise above the limit, and takes the longer to drain.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyengine.http.access.keys import KeyLimits

SLOTS = 1 << 16
"""Most keys that may be measured."""

MINUTE_S = 60.0

# The levels of requests and of tokens, and the CLOCK_MONOTONIC time of both in seconds.
_SLOT = struct.Struct("=ddd")


class Rates:
    """The buckets of all keys, in memory that several processes share.

    A slot is locked for the microseconds of its change; the lock of a process that dies is freed.
    One thread of a process at a time.
    """

    def __init__(self, descriptor: int) -> None:
        """Attach to the memory of :meth:`make`; its descriptor may be inherited."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SLOTS * _SLOT.size)

    @classmethod
    def make(cls) -> "Rates":
        """Fresh memory, in which nothing has been used."""
        descriptor = os.memfd_create("pyengine-rates")
        os.ftruncate(descriptor, SLOTS * _SLOT.size)  # sparse: a page is used when it is written
        return cls(descriptor)

    def admit(self, slot: int, limits: KeyLimits, weight: float = 1.0) -> float:
        """Count a request, unless the key has used what it may.

        Returns:
            0 if it was counted, else the seconds until there is room.
        """
        if limits.requests is None and limits.tokens is None:
            return 0.0
        with self._locked(slot):
            requests, tokens, now = self._levels(slot, limits)
            waits = (
                _seconds_over(requests + weight, limits.requests),
                _seconds_over(tokens + 1, limits.tokens),
            )
            if max(waits) > 0:
                return max(waits)
            self._store(slot, requests + weight, tokens, now)
        return 0.0

    def charge(self, slot: int, limits: KeyLimits, used: int) -> None:
        """Count ``used`` tokens."""
        if limits.tokens is None or not used:
            return
        with self._locked(slot):
            requests, tokens, now = self._levels(slot, limits)
            self._store(slot, requests, tokens + used, now)

    def _levels(self, slot: int, limits: KeyLimits) -> tuple[float, float, float]:
        """The levels of now, and now. What has no limit is not measured."""
        requests, tokens, then = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
        now = time.monotonic()
        minutes = (now - then) / MINUTE_S
        return (
            0.0 if limits.requests is None else max(0.0, requests - minutes * limits.requests),
            0.0 if limits.tokens is None else max(0.0, tokens - minutes * limits.tokens),
            now,
        )

    def _store(self, slot: int, requests: float, tokens: float, now: float) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, requests, tokens, now)

    @contextmanager
    def _locked(self, slot: int) -> Iterator[None]:
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX, _SLOT.size, slot * _SLOT.size)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, _SLOT.size, slot * _SLOT.size)


def _seconds_over(level: float, limit: int | None) -> float:
    """How long a bucket needs to drain to its limit."""
    return 0.0 if limit is None else max(0.0, (level - limit) * MINUTE_S / limit)
