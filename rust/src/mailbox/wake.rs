//! Waking a reader that sleeps, and only then: an eventfd shared by all sides.
//!
//! The reader arms (takes a new ticket and stores it in the shared word), looks at the ring once more, and
//! sleeps. A writer changes its slot and reads the word; if a ticket is in it, the writer makes the eventfd
//! readable and then takes the ticket out. All four accesses are sequentially consistent:
//!
//! ```text
//!   writer                            reader
//!   W1  slot := PUBLISHED             R1  armed := ticket
//!   W2  armed?  ── ticket: write fd   R2  slot?  ── a message: do not sleep
//! ```
//!
//! In their one total order either W1 is before R2, and the reader sees the message, or R1 is before W2, and the
//! writer sees the ticket: no wake-up is lost. A writer looks once after RESERVED, too. If it is killed later, the
//! reader has been woken since the record was reserved, has seen it, and watches the writer's pidfd. If it is
//! killed before it could wake anybody, its message was never sent and the next writer wakes. The ticket is
//! taken out *after* the eventfd was written, so that no wake-up dies with its writer, and it is a new one each
//! time, so that a late writer cannot take out another.
//!
//! What the reader polls is an epoll over the eventfd and that pidfd; asyncio polls the same descriptor. All
//! this costs a writer two loads while the reader is busy.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::process::{self, Process};
use super::region::{Header, last_error, system};
use crate::error::{Error, Result};

/// How long a reader sleeps at most on a record whose writer it cannot watch.
const UNWATCHED_SLEEP: Duration = Duration::from_millis(200);

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

struct Watch {
    process: u32,
    /// None if there is no pidfd to be had.
    pidfd: Option<OwnedFd>,
}

/// One process's side of the wake-up.
pub(super) struct Wake {
    event: File,
    /// Made when this process first reads.
    epoll: OnceLock<OwnedFd>,
    watch: Mutex<Option<Watch>>,
    /// Whether the eventfd may be readable.
    signalled: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: a system call on plain numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(last_error("eventfd"));
        }
        // SAFETY: `fd` was just made and nobody else has it.
        Ok(Self::with(unsafe { File::from_raw_fd(fd) }))
    }

    /// The side of a process that inherited the eventfd. It is duplicated; the caller keeps its own.
    pub(super) fn attach(event: BorrowedFd<'_>) -> Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        if link.is_ok_and(|link| !link.to_string_lossy().contains("eventfd")) {
            return Err(Error::InvalidArgument("the second descriptor is not an eventfd".into()));
        }
        let event = event.try_clone_to_owned().map_err(|error| system("dup", &error))?;
        Ok(Self::with(event.into()))
    }

    fn with(event: File) -> Self {
        Self { event, epoll: OnceLock::new(), watch: Mutex::new(None), signalled: AtomicBool::new(true) }
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes the reader if it sleeps or is about to. After every change of a slot.
    pub(super) fn wake(&self, header: &Header) {
        let ticket = header.armed.0.load(SeqCst);
        if ticket != 0 {
            self.signal();
            let _ = header.armed.0.compare_exchange(ticket, 0, SeqCst, Relaxed);
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
        if self.signalled.swap(true, Relaxed) {
            let _ = (&self.event).read(&mut [0; 8]); // Nothing to read is as good.
        }
        let ticket = header.tickets.0.fetch_add(1, Relaxed) + 1;
        header.armed.0.store(ticket, SeqCst);
    }

    /// No wake-up is needed any more.
    pub(super) fn disarm(&self, header: &Header) {
        header.armed.0.store(0, SeqCst);
    }

    /// Wake up also when `process` ends, or no more. False if it has ended.
    pub(super) fn watch(&self, process: Option<u32>) -> Result<bool> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.as_ref().map(|watch| watch.process) == process
            && watch.as_ref().is_none_or(|watch| watch.pidfd.is_some())
        {
            return Ok(process.is_none_or(process::is_alive));
        }
        if let Some(Watch { pidfd: Some(pidfd), .. }) = watch.take() {
            self.control(libc::EPOLL_CTL_DEL, pidfd.as_fd())?;
        }
        let Some(process) = process else { return Ok(true) };
        let pidfd = match process::find(process) {
            Process::Gone => return Ok(false),
            Process::Running(pidfd) => Some(pidfd),
            Process::Unknown => None,
        };
        if let Some(pidfd) = &pidfd {
            self.control(libc::EPOLL_CTL_ADD, pidfd.as_fd())?;
        }
        *watch = Some(Watch { process, pidfd });
        Ok(true)
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>) -> Result<()> {
        control(self.descriptor()?, operation, fd)
    }

    /// What is readable when the reader should look.
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        if let Some(epoll) = self.epoll.get() {
            return Ok(epoll.as_fd());
        }
        // SAFETY: a system call on plain numbers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last_error("epoll_create1"));
        }
        // SAFETY: `fd` was just made and nobody else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        control(epoll.as_fd(), libc::EPOLL_CTL_ADD, self.event.as_fd())?;
        Ok(self.epoll.get_or_init(|| epoll).as_fd())
    }

    /// Sleeps until woken, at most to `deadline`.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> Result<Slept> {
        let mut poll = libc::pollfd { fd: self.descriptor()?.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let unwatched = {
            let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            watch.as_ref().is_some_and(|watch| watch.pidfd.is_none())
        };
        if unwatched {
            left = Some(left.map_or(UNWATCHED_SLEEP, |left| left.min(UNWATCHED_SLEEP)));
        }
        let left = left.map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos() as _,
        });
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one valid pollfd; `left` is null or points to a timespec that outlives the call.
        match unsafe { libc::ppoll(&mut poll, 1, left, std::ptr::null()) } {
            0 if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Ok(Slept::TimedOut),
            0.. => Ok(Slept::Woken),
            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {
                Ok(Slept::Interrupted)
            }
            _ => Err(last_error("ppoll")),
        }
    }
}

fn control(epoll: BorrowedFd<'_>, operation: i32, fd: BorrowedFd<'_>) -> Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open, and `event` is valid for the call.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) };
    if result < 0 { Err(last_error("epoll_ctl")) } else { Ok(()) }
}
