"""The clocks of a store: leases run by the machine's uptime, which nobody sets, unlike its time."""

import time

LEASE_S = 30.0
"""How long the lease of a process is that says nothing more of it."""
_SETTLED_S = 3600.0


def lease_until() -> float:
    """When a lease that is taken now ends, in seconds of uptime."""
    return _uptime() + LEASE_S


def lease_bounds() -> tuple[float, float]:
    """A process still has a lease that ends between these; a later end is of an earlier boot."""
    now = _uptime()
    return now, now + 2 * LEASE_S


def is_held(lease: float) -> bool:
    """Whether a process has the lease that ends at ``lease``."""
    now, latest = lease_bounds()
    return now <= lease <= latest


class Expiry:
    """Tells what may be removed for good: a clock that is ahead for a moment removes nothing."""

    def __init__(self) -> None:
        self._time, self._uptime = time.time(), _uptime()

    def horizon(self) -> float:
        """What expires before it may go: nothing in the first hour, then by the least time that
        has been passed since.
        """
        passed = _uptime() - self._uptime
        return 0.0 if passed < _SETTLED_S else min(time.time(), self._time + passed)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
