//! The one clock of spans, deadlines and steps: the same in every process, and in Python. O(1).

/// CLOCK_MONOTONIC in nanoseconds: what `time.monotonic_ns()` gives in Python, the same in every process.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that may be written; CLOCK_MONOTONIC is there on every system we run on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
