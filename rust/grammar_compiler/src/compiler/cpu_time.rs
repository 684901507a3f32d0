//! The CPU time of a compilation, which other threads can read: a busy machine makes it no longer.

use std::time::Duration;

/// The clock of a thread's CPU time, from when a compilation began on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuClock {
    clock: libc::clockid_t,
    began: Duration,
}

impl CpuClock {
    /// Begins on the calling thread. It stands still once that thread has ended.
    pub fn begin() -> Self {
        let mut clock = 0;
        // SAFETY: the thread is alive, as it calls, and `clock` outlives the call.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        Self { clock, began: read(clock) }
    }

    /// The CPU time that the thread has taken since then.
    pub fn elapsed(&self) -> Duration {
        read(self.clock).saturating_sub(self.began)
    }
}

/// What a clock shows; nothing where its thread has ended.
fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes nothing where the clock is gone.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
