//! The mailbox: the one kind of queue between actors, in one process or between several.
//!
//! A bounded, lock-free ring of byte messages with many writers and one reader, in memory that other processes
//! can share by two inherited descriptors. [`ring`] is the protocol, [`region`] the memory, [`wake`] the sleep
//! and wake-up, [`process`] whether a process is alive.
//!
//! ```text
//!   send ──► ring ──► receive            full: send returns an error, the sender keeps it
//!     └── eventfd, if asleep ──► wait    closed: the reader gets what is left, then an error
//! ```
//!
//! A message costs O(length) for the copy in, nothing for reading it in place, and a system call only when the
//! reader sleeps.

mod process;
mod region;
mod ring;
mod wake;

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyengine_base::error::{Error, Result};
use region::{GRANULE, Region};
use ring::{Next, Reading, Ring};
use wake::{Slept, Wake};

/// After waiting this long for a record to be published, the reader checks whether its writer is alive.
const WRITER_CHECK: Duration = Duration::from_millis(10);

/// How an interruptible wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// There is a message.
    Message,
    /// There is none, and the mailbox is closed.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// A signal came first.
    Interrupted,
}

/// A handle of a mailbox; clones and [`Mailbox::attach`]ed ones are the same mailbox.
///
/// Any thread of any process may send; one thread at a time may receive, of the process that received first
/// (or, once that one has died, of the next that tries).
#[derive(Clone)]
pub struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    ring: Ring,
    wake: Wake,
    /// The unpublished record that the reader waits for, and since when.
    stuck: Mutex<Option<(u32, Instant)>>,
}

impl Mailbox {
    /// A mailbox of `capacity` bytes (at most 1 GiB), rounded up to a power of two and at least a page.
    pub fn new(capacity: usize) -> Result<Self> {
        Ok(Self::with(Region::new(capacity)?, Wake::new()?))
    }

    /// The mailbox of another process, by the [`descriptors`](Self::descriptors) inherited from it. They are
    /// duplicated; the caller may close its own.
    pub fn attach(memory: BorrowedFd<'_>, event: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self::with(Region::attach(memory)?, Wake::attach(event)?))
    }

    fn with(region: Region, wake: Wake) -> Self {
        Self { shared: Arc::new(Shared { ring: Ring::new(region), wake, stuck: Mutex::new(None) }) }
    }

    /// The descriptors of memory and eventfd, for another process to attach by. Open as long as the handle.
    pub fn descriptors(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.shared.ring.region().memory(), self.shared.wake.event())
    }

    /// Appends `message` and wakes the reader if it sleeps. Never blocks. One thread's messages stay in order.
    ///
    /// Errors: `MailboxFull` (nothing was sent), `MailboxClosed` (also when it is full and its reader is dead),
    /// `MessageTooLarge` (over [`max_message`](Self::max_message)).
    pub fn send(&self, message: &[u8]) -> Result<()> {
        let Shared { ring, wake, .. } = &*self.shared;
        let place = match ring.reserve(message.len()) {
            Err(Error::MailboxFull { .. }) if !self.reader_alive() => return Err(Error::MailboxClosed),
            place => place?,
        };
        ring.publish(place, message);
        wake.wake(ring.header());
        Ok(())
    }

    /// Replaces the contents of `message` by the next message. False, and nothing changed, if there is none now.
    ///
    /// Errors: `MailboxClosed` once it is closed and everything was read; `InvalidArgument` if another thread
    /// or a living other process is its reader.
    pub fn receive(&self, message: &mut Vec<u8>) -> Result<bool> {
        let received = self.receive_with(|bytes| {
            message.clear();
            message.extend_from_slice(bytes);
        })?;
        Ok(received.is_some())
    }

    /// Gives the next message to `take`, in place: no copy, no allocation. None if there is none now. The
    /// message leaves the ring when `take` returns; `take` must not receive from this mailbox.
    ///
    /// Errors: as [`receive`](Self::receive).
    pub fn receive_with<T>(&self, take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.shared.ring.read().map(|reading| self.skip_dead_writer(reading))?.next(take)
    }

    /// Gives up to `limit` messages to `take`, in place and in order; returns how many.
    ///
    /// Errors: as [`receive`](Self::receive), if there was no message.
    pub fn drain_with(&self, limit: usize, mut take: impl FnMut(&[u8])) -> Result<usize> {
        let mut reading = self.skip_dead_writer(self.shared.ring.read()?);
        for count in 0..limit {
            match reading.next(&mut take) {
                Ok(Some(())) => {}
                Err(Error::MailboxClosed) if count == 0 => return Err(Error::MailboxClosed),
                Ok(None) | Err(_) => return Ok(count),
            }
        }
        Ok(limit)
    }

    /// Skips the record at the head if its writer died, checking every `WRITER_CHECK` at most.
    fn skip_dead_writer<'a>(&self, mut reading: Reading<'a>) -> Reading<'a> {
        let Next::InFlight(writer) = self.shared.ring.peek() else { return reading };
        if writer == process::own_id() {
            return reading; // A thread of this process does not end without it.
        }
        let mut stuck = self.shared.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let since = stuck.filter(|(index, _)| *index == reading.index()).map(|(_, since)| since);
        if since.is_none_or(|since| since.elapsed() >= WRITER_CHECK) {
            if since.is_some() && !process::is_alive(writer) {
                reading.skip(writer);
            }
            *stuck = Some((reading.index(), Instant::now()));
        }
        reading
    }

    /// The event that ends a wait at once, after a dead writer's record was skipped.
    fn poll(&self) -> Result<Option<Waited>> {
        let ring = &self.shared.ring;
        if let Next::InFlight(_) = ring.peek() {
            self.skip_dead_writer(ring.read()?);
        }
        Ok(settled(ring.peek()))
    }

    /// Spins for `spin`, then sleeps until there is a message, the mailbox closes or `timeout` has passed.
    /// True if there is a message.
    ///
    /// Errors: `InvalidArgument` if a living other process is the reader; `System`.
    pub fn wait(&self, timeout: Option<Duration>, spin: Duration) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut waited = self.wait_until(deadline, spin)?;
        while waited == Waited::Interrupted {
            waited = self.wait_until(deadline, Duration::ZERO)?;
        }
        Ok(waited == Waited::Message)
    }

    /// [`wait`](Self::wait) that also returns when a signal comes; the result says why it returned.
    pub fn wait_until(&self, deadline: Option<Instant>, spin: Duration) -> Result<Waited> {
        let Shared { ring, wake, .. } = &*self.shared;
        ring.claim()?;
        if let Some(waited) = self.poll()?.or_else(|| self.spin(deadline, spin)) {
            return Ok(waited);
        }
        loop {
            if let Some(waited) = self.arm_unless_ready() {
                return Ok(waited);
            }
            let slept = wake.sleep(deadline);
            wake.disarm(ring.header());
            match (self.poll()?, slept?) {
                (Some(waited), _) => return Ok(waited),
                (None, Slept::Woken) => {}
                (None, Slept::TimedOut) => return Ok(Waited::TimedOut),
                (None, Slept::Interrupted) => return Ok(Waited::Interrupted),
            }
        }
    }

    fn spin(&self, deadline: Option<Instant>, spin: Duration) -> Option<Waited> {
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                if let Some(waited) = settled(self.shared.ring.peek()) {
                    return Some(waited);
                }
                if spin.is_zero() {
                    break;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Some(Waited::TimedOut);
            }
            if now - start >= spin {
                return None;
            }
            // The writer may be waiting for this core.
            std::thread::yield_now();
        }
    }

    /// Asks for the next send to make [`descriptor`](Self::descriptor) readable. False, and not armed, if there
    /// is a message already or the mailbox is closed. For an event loop: drain, then arm, until arm is true.
    ///
    /// Errors: as [`wait`](Self::wait).
    pub fn arm(&self) -> Result<bool> {
        self.shared.ring.claim()?;
        self.shared.wake.set_timer()?;
        Ok(self.arm_unless_ready().is_none())
    }

    /// Arms, unless a wait would end at once. See `wake` for why no message is missed.
    fn arm_unless_ready(&self) -> Option<Waited> {
        let Shared { ring, wake, .. } = &*self.shared;
        wake.arm(ring.header());
        let waited = settled(ring.peek());
        if waited.is_some() {
            wake.disarm(ring.header());
        }
        waited
    }

    /// The descriptor to poll for reading: readable after [`arm`](Self::arm) when there may be something to receive.
    /// This process's own (an epoll over the shared eventfd and a timer, see `wake`); open as long as the handle.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.shared.wake.descriptor()
    }

    /// No more sends; the reader gets what is left, then `MailboxClosed`. Idempotent, from any side.
    pub fn close(&self) {
        self.shared.ring.header().closed.store(1, SeqCst);
        self.shared.wake.signal();
    }

    /// Whether it was closed. There may be messages left.
    pub fn is_closed(&self) -> bool {
        self.shared.ring.header().closed.load(SeqCst) != 0
    }

    /// False if the process that read from it has died. True before the first read.
    pub fn reader_alive(&self) -> bool {
        let reader = self.shared.ring.reader();
        reader == 0 || process::is_alive(reader)
    }

    /// Bytes in all. A message takes its length rounded up to 64.
    pub fn capacity(&self) -> usize {
        self.shared.ring.region().capacity()
    }

    /// Bytes taken by messages that are not read yet.
    pub fn used(&self) -> usize {
        self.shared.ring.taken() * GRANULE
    }

    /// The longest message it takes: half of the capacity.
    pub fn max_message(&self) -> usize {
        self.shared.ring.limit()
    }
}

/// The event that ends a wait at once: a message or the end.
fn settled(next: Next) -> Option<Waited> {
    match next {
        Next::Message => Some(Waited::Message),
        Next::End => Some(Waited::Closed),
        Next::Empty | Next::InFlight(_) => None,
    }
}

#[cfg(test)]
mod tests;
