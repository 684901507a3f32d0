"""How long one request took, part by part."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """The moments of a request, by ``time.monotonic_ns()``; 0 is not yet, or never.

    ::

        arrival ──queue──► admitted ──prefill──► first token ──decode──► end

    Arrival and admission are the engine's; first token and end are when they were read on the
    frontend's loop.
    """

    arrival_ns: int
    admitted_ns: int
    first_ns: int
    end_ns: int

    def phases(self) -> list[tuple[str, int, int]]:
        """Name, start and end of queue, prefill and decode; of those that the request came to."""
        if not self.first_ns:
            return []
        # Clocks are read in microseconds on the way: no phase begins after its end.
        admitted = min(self.admitted_ns, self.first_ns)
        return [
            ("queue", self.arrival_ns, admitted),
            ("prefill", admitted, self.first_ns),
            ("decode", self.first_ns, max(self.end_ns, self.first_ns)),
        ]


def server_timing(timings: list[Timing]) -> str:
    """The value of a ``Server-Timing`` header: milliseconds of the request that took longest."""
    slowest = max(timings, key=lambda timing: timing.end_ns - timing.arrival_ns)
    phases = [*slowest.phases(), ("total", slowest.arrival_ns, slowest.end_ns)]
    return ", ".join(f"{name};dur={(end - start) * 1e-6:.3f}" for name, start, end in phases)
