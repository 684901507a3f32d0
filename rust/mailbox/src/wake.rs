//! Waking a reader that sleeps, and only then: an eventfd shared by all sides.
//!
//! The reader arms (sets the shared word), looks at the ring once more, and sleeps. A writer publishes and
//! reads the word; if it is set, it resets it and makes the eventfd readable. All four accesses are sequentially
//! consistent:
//!
//! ```text
//!   writer                              reader
//!   W1  slot := PUBLISHED               R1  armed := 1
//!   W2  armed?  ── 1: reset, write fd   R2  slot?  ── a message: do not sleep
//! ```
//!
//! In their one total order either W1 is before R2, and the reader sees the message, or R1 is before W2, and the
//! writer sees the word: no wake-up is lost. A late writer may write for a sleep that has ended; that costs the
//! reader one look. While the reader is busy a writer pays one load.
//!
//! Only a killed writer can leave a reader asleep: between W1 and the write to the eventfd, or before W1, when
//! its record blocks those behind it. So a reader never sleeps longer than [`TICK`] without a look. For `wait`
//! that is the poll's timeout; for an event loop it is a timer in an epoll beside the eventfd, set again when
//! the reader arms, and no more often than it needs to be.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::region::Header;
use pyengine_base::error::{Error, Result};
use pyengine_base::shared_memory::{last_error, system};

/// The longest sleep without a look. Two of them, and the reader has skipped a dead writer's record.
const TICK: Duration = Duration::from_millis(300);
/// The timer is left as it is for so long, so that a busy reader does not set it at each message.
const TICK_SLACK: Duration = Duration::from_millis(100);

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slept {
    /// Something may have happened: look.
    Woken,
    /// The deadline passed.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// The descriptor for event loops: an epoll over the eventfd and a timer.
struct Descriptor {
    epoll: File,
    timer: File,
    timer_set: Mutex<Option<Instant>>,
}

/// One process's side of the wake-up.
pub(super) struct Wake {
    event: File,
    /// [`TICK`], but in tests that must not be helped by it.
    tick: Duration,
    /// Made when first asked for.
    descriptor: OnceLock<Descriptor>,
}

impl Wake {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: a system call on plain numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(Self { event: owned("eventfd", fd)?, tick: TICK, descriptor: OnceLock::new() })
    }

    /// One whose reader sleeps for ever if a wake-up is lost.
    #[cfg(test)]
    pub(super) fn without_tick() -> Self {
        Self { tick: Duration::from_secs(3600), ..Self::new().unwrap() }
    }

    /// The side of a process that inherited the eventfd. It is duplicated; the caller keeps its own.
    pub(super) fn attach(event: BorrowedFd<'_>) -> Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        if link.is_ok_and(|link| !link.to_string_lossy().contains("eventfd")) {
            return Err(Error::InvalidArgument("the second descriptor is not an eventfd".into()));
        }
        let event = event.try_clone_to_owned().map_err(|error| system("dup", &error))?;
        Ok(Self { event: event.into(), tick: TICK, descriptor: OnceLock::new() })
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes the reader if it sleeps or is about to. After a record was published.
    pub(super) fn wake(&self, header: &Header) {
        if header.armed.0.load(SeqCst) != 0 && header.armed.0.swap(0, SeqCst) != 0 {
            self.signal();
        }
    }

    /// Makes the eventfd readable.
    #[cold]
    pub(super) fn signal(&self) {
        // The one thing that can go wrong is a counter that is full, and then the eventfd is readable.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }

    /// Asks for a wake-up; the caller looks at the ring afterwards.
    pub(super) fn arm(&self, header: &Header) {
        // Clears the event that woke the reader last time; there may be none.
        let _ = (&self.event).read(&mut [0; 8]);
        header.armed.0.store(1, SeqCst);
    }

    /// No wake-up is needed any more.
    pub(super) fn disarm(&self, header: &Header) {
        header.armed.0.store(0, SeqCst);
    }

    /// Sleeps until woken, at most to `deadline`; now and then for a look.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> Result<Slept> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = timespec(left.map_or(self.tick, |left| left.min(self.tick)));
        let mut poll = libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a timespec that outlives the call.
        match unsafe { libc::ppoll(&mut poll, 1, &left, std::ptr::null()) } {
            0 if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Ok(Slept::TimedOut),
            0.. => Ok(Slept::Woken),
            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {
                Ok(Slept::Interrupted)
            }
            _ => Err(last_error("ppoll")),
        }
    }

    /// The descriptor for event loops: readable when the reader should look.
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.made().map(|made| made.epoll.as_fd())
    }

    /// Sets the timer behind the descriptor.
    pub(super) fn set_timer(&self) -> Result<()> {
        self.made()?.set_timer()
    }

    fn made(&self) -> Result<&Descriptor> {
        if let Some(made) = self.descriptor.get() {
            return Ok(made);
        }
        let made = Descriptor::new(self.event.as_fd())?;
        Ok(self.descriptor.get_or_init(|| made))
    }
}

impl Descriptor {
    fn new(event: BorrowedFd<'_>) -> Result<Self> {
        // SAFETY: a system call on plain numbers.
        let epoll = owned("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a system call on plain numbers.
        let timer = owned("timerfd_create", unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        for fd in [event, timer.as_fd()] {
            let mut wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let (epoll, add) = (epoll.as_raw_fd(), libc::EPOLL_CTL_ADD);
            // SAFETY: both descriptors are open, and `wanted` is valid for the call.
            if unsafe { libc::epoll_ctl(epoll, add, fd.as_raw_fd(), &mut wanted) } < 0 {
                return Err(last_error("epoll_ctl"));
            }
        }
        Ok(Self { epoll, timer, timer_set: Mutex::new(None) })
    }

    /// Makes the timer fire after a tick, which also ends an old firing.
    fn set_timer(&self) -> Result<()> {
        let mut set = self.timer_set.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if set.is_some_and(|set| now - set < TICK_SLACK) {
            return Ok(());
        }
        let time = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(TICK) };
        // SAFETY: the timer is open, and `time` is valid for the call; the old time is not wanted.
        if unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &time, std::ptr::null_mut()) } < 0 {
            return Err(last_error("timerfd_settime"));
        }
        *set = Some(now);
        Ok(())
    }
}

fn timespec(time: Duration) -> libc::timespec {
    // Never longer than a tick.
    libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}

/// The new descriptor that `call` returned.
fn owned(call: &str, fd: i32) -> Result<File> {
    if fd < 0 {
        return Err(last_error(call));
    }
    // SAFETY: `fd` was just made by the caller, and no other code has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
