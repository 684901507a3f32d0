"""Device times against a simulated device whose clock drifts and whose host wakes up late."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pyengine.model.torch.device.clock import WAKE_NS, DeviceClock


@dataclass(frozen=True)
class FakeMark:
    """A moment of the device's clock, in its nanoseconds."""

    at: float

    def elapsed_time(self, later: "FakeMark") -> float:
        return (later.at - self.at) * 1e-6


@dataclass(frozen=True)
class Drifting:
    """A device clock that gains ``ppm`` on the host's."""

    ppm: float
    offset: float = 12345.0

    def mark(self, host_ns: float) -> FakeMark:
        return FakeMark(self.offset + host_ns * (1 + self.ppm * 1e-6))


steps = st.lists(
    st.tuples(
        st.integers(0, 5_000_000),  # the host does something else before it launches
        st.integers(1_000, 20_000_000),  # the step takes
        st.integers(0, 200_000),  # the host wakes up so late
        st.booleans(),  # has masks
    ),
    min_size=1,
    max_size=60,
)


@given(steps=steps, ppm=st.floats(-200, 200), overlapping=st.booleans())
def test_times_are_near_the_truth_and_do_not_overlap(
    steps: list[tuple[int, int, int, bool]], ppm: float, overlapping: bool
) -> None:
    device = Drifting(ppm)
    clock = DeviceClock(device.mark(0), 0)
    now = free = 0
    last_end = 0
    for idle, takes, late, masked in steps:
        launched = now + idle
        start = max(launched, free)
        if overlapping:  # launched while the step before was running
            launched = max(0, start - idle)
        end = free = start + takes
        marks = [start + takes // 2, start + takes * 3 // 4]
        now = end + late
        times = clock.step(
            device.mark(start),
            device.mark(end),
            (device.mark(marks[0]), device.mark(marks[1])) if masked else None,
            launched_ns=launched,
            returned_ns=now,
            slept=True,
        )
        assert times.start_ns >= last_end
        assert times.start_ns <= times.waited_ns[0] <= times.waited_ns[1] <= times.end_ns <= now
        assert (times.waited_ns[0] == times.waited_ns[1]) or masked
        assert abs(times.end_ns - end) <= WAKE_NS + late + takes * 200e-6 + 2
        if masked and start + takes // 4 > last_end + WAKE_NS:
            wait = times.waited_ns[1] - times.waited_ns[0]
            assert abs(wait - (marks[1] - marks[0])) <= takes * 200e-6 + 2 * WAKE_NS
        last_end = times.end_ns


def test_an_hour_of_drift_is_followed() -> None:
    device = Drifting(ppm=50.0)
    clock = DeviceClock(device.mark(0), 0)
    hour = 3600 * 10**9
    times = clock.step(
        device.mark(hour),
        device.mark(hour + 1000_000),
        launched_ns=hour - 100,
        returned_ns=hour + 1_020_000,
        slept=True,
    )
    assert hour - 100 <= times.start_ns
    assert times.end_ns <= hour + 1_020_000
    slow = Drifting(ppm=-50.0)
    clock = DeviceClock(slow.mark(0), 0)
    times = clock.step(
        slow.mark(hour),
        slow.mark(hour + 1000_000),
        launched_ns=0,
        returned_ns=hour + 1_020_000,
        slept=True,
    )
    assert hour + 1_020_000 - WAKE_NS <= times.end_ns <= hour + 1_020_000


def test_exact_marks_give_exact_times() -> None:
    device = Drifting(ppm=0.0)
    clock = DeviceClock(device.mark(100), 100)
    times = clock.step(
        device.mark(1_000_000),
        device.mark(3_000_000),
        (device.mark(2_000_000), device.mark(2_500_000)),
        launched_ns=900_000,
        returned_ns=3_100_000,
        slept=True,
    )
    assert times == (1_000_000, (2_000_000, 2_500_000), 3_000_000)
