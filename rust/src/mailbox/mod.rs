//! The mailbox: the one kind of queue between actors, in one process or between several.
//!
//! A bounded, lock-free ring of byte messages with many writers and one reader, in memory that other processes
//! can share by two inherited descriptors. [`ring`] is the protocol, [`region`] the memory, [`wake`] the sleep
//! and wake-up, [`process`] tells the dead from the living.
//!
//! ```text
//!   send ──► ring ──► receive            full: the sender is told and keeps its message
//!     └── eventfd, if asleep ──► wait    closed: the reader gets what is left, then is told
//! ```

mod process;
mod region;
mod ring;
mod wake;

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use region::{GRANULE, Region};
use ring::{Next, Reading, Ring};
use wake::{Slept, Wake};

/// A reader looks after its unpublished record's writer when it has waited so long.
const PATIENCE: Duration = Duration::from_millis(10);

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
    /// The unpublished record that the reader stands at, and since when.
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
        self.shared.ring.read().map(|reading| self.past_the_dead(reading))?.next(take)
    }

    /// Gives up to `limit` messages to `take`, in place and in order; returns how many.
    ///
    /// Errors: as [`receive`](Self::receive), if there was no message.
    pub fn drain_with(&self, limit: usize, mut take: impl FnMut(&[u8])) -> Result<usize> {
        let mut reading = self.past_the_dead(self.shared.ring.read()?);
        for count in 0..limit {
            match reading.next(&mut take) {
                Ok(Some(())) => {}
                Err(Error::MailboxClosed) if count == 0 => return Err(Error::MailboxClosed),
                Ok(None) | Err(_) => return Ok(count),
            }
        }
        Ok(limit)
    }

    /// Skips the record at the head if its writer died, looking every `PATIENCE` at most.
    fn past_the_dead<'a>(&self, mut reading: Reading<'a>) -> Reading<'a> {
        let Next::InFlight(writer) = self.shared.ring.peek() else { return reading };
        if writer == process::own_id() {
            return reading; // A thread does not die alone.
        }
        let mut stuck = self.shared.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let since = stuck.filter(|(index, _)| *index == reading.index()).map(|(_, since)| since);
        if since.is_none_or(|since| since.elapsed() >= PATIENCE) {
            if since.is_some() && !process::is_alive(writer) {
                reading.skip(writer);
            }
            *stuck = Some((reading.index(), Instant::now()));
        }
        reading
    }

    /// What the reader need not wait for, after it looked past a dead writer's record.
    fn look(&self) -> Result<Option<Waited>> {
        let ring = &self.shared.ring;
        if let Next::InFlight(_) = ring.peek() {
            self.past_the_dead(ring.read()?);
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

    /// [`wait`](Self::wait) that returns when a signal comes, and tells how it ended.
    pub fn wait_until(&self, deadline: Option<Instant>, spin: Duration) -> Result<Waited> {
        let Shared { ring, wake, .. } = &*self.shared;
        ring.claim()?;
        if let Some(waited) = self.look()?.or_else(|| self.spin(deadline, spin)) {
            return Ok(waited);
        }
        loop {
            if let Some(waited) = self.arm_or_tell() {
                return Ok(waited);
            }
            let slept = wake.sleep(deadline);
            wake.disarm(ring.header());
            match (self.look()?, slept?) {
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
            // The writer may be waiting for this very core.
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
        Ok(self.arm_or_tell().is_none())
    }

    /// Arms, unless there is something to tell. See `wake` for why none is missed.
    fn arm_or_tell(&self) -> Option<Waited> {
        let Shared { ring, wake, .. } = &*self.shared;
        wake.arm(ring.header());
        let waited = settled(ring.peek());
        if waited.is_some() {
            wake.disarm(ring.header());
        }
        waited
    }

    /// What to poll for reading: readable after [`arm`](Self::arm) when there may be something to receive.
    /// This process's own (an epoll over the shared eventfd and a timer, see `wake`); open as long as the handle.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.shared.wake.descriptor()
    }

    /// No more sends; the reader gets what is left, then `MailboxClosed`. Idempotent, from any side.
    pub fn close(&self) {
        self.shared.ring.header().closed.store(1, SeqCst);
        self.shared.wake.signal();
    }

    /// Whether somebody closed it. There may be messages left.
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

/// What a reader need not wait for.
fn settled(next: Next) -> Option<Waited> {
    match next {
        Next::Message => Some(Waited::Message),
        Next::End => Some(Waited::Closed),
        Next::Empty | Next::InFlight(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsRawFd;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Longer than any sleep here should be.
    const FOREVER: Option<Duration> = Some(Duration::from_secs(60));

    fn without_tick(capacity: usize) -> Mailbox {
        Mailbox::with(Region::new(capacity).unwrap(), Wake::without_tick())
    }

    fn received(mailbox: &Mailbox) -> Result<Option<Vec<u8>>> {
        mailbox.receive_with(<[u8]>::to_vec)
    }

    fn poll(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
    }

    /// Whether the eventfd is readable. (The descriptor may be, by its timer.)
    fn is_signalled(mailbox: &Mailbox) -> bool {
        poll(mailbox.descriptors().1, 0)
    }

    /// Runs `work` in a forked child and returns its process id. The child may only use memory and descriptors
    /// that it has: another thread may have held any lock at the fork.
    fn fork(work: impl FnOnce()) -> libc::pid_t {
        process::own_id(); // Registers its fork handler, under a lock.
        // SAFETY: the child runs `work`, which keeps to the above, and never returns into the test harness.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        child
    }

    fn die() {
        // SAFETY: kills the calling process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }

    fn reap(child: libc::pid_t) {
        // SAFETY: waits for a child of ours, wants no status.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    #[test]
    fn messages_of_all_lengths_go_through() {
        let mailbox = Mailbox::new(1 << 14).unwrap();
        let mut message = vec![1];
        assert!(!mailbox.receive(&mut message).unwrap());
        assert_eq!(message, [1]);
        for length in [0, 1, 63, 64, 65, 4000, mailbox.max_message()] {
            mailbox.send(&vec![length as u8; length]).unwrap();
            assert_eq!(mailbox.used(), length.div_ceil(64).max(1) * 64);
            assert!(mailbox.receive(&mut message).unwrap());
            assert_eq!((message.len(), mailbox.used()), (length, 0));
            assert!(message.iter().all(|&byte| byte == length as u8));
        }
        let limit = mailbox.max_message();
        let error = Error::MessageTooLarge { length: limit + 1, limit };
        assert_eq!(mailbox.send(&vec![0; limit + 1]), Err(error));
    }

    #[test]
    fn drain_takes_no_more_than_its_limit() {
        let mailbox = Mailbox::new(1).unwrap();
        for byte in 0..5 {
            mailbox.send(&[byte]).unwrap();
        }
        let mut all = Vec::new();
        assert_eq!(mailbox.drain_with(3, |bytes| all.extend_from_slice(bytes)), Ok(3));
        mailbox.close();
        assert_eq!(mailbox.drain_with(0, |_| unreachable!()), Ok(0));
        assert_eq!(mailbox.drain_with(9, |bytes| all.extend_from_slice(bytes)), Ok(2));
        assert_eq!(mailbox.drain_with(9, |_| unreachable!()), Err(Error::MailboxClosed));
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn arming_makes_the_descriptor_readable_once() {
        let mailbox = Mailbox::new(1).unwrap();
        mailbox.send(b"a").unwrap();
        assert!(!mailbox.arm().unwrap() && !is_signalled(&mailbox));
        received(&mailbox).unwrap();
        for _ in 0..3 {
            assert!(mailbox.arm().unwrap() && !is_signalled(&mailbox));
            mailbox.clone().send(b"b").unwrap();
            assert!(is_signalled(&mailbox) && !mailbox.arm().unwrap());
            received(&mailbox).unwrap();
        }
        assert!(mailbox.arm().unwrap());
        mailbox.close();
        assert!(is_signalled(&mailbox) && !mailbox.arm().unwrap());
    }

    #[test]
    fn a_busy_reader_costs_no_system_call() {
        let mailbox = Mailbox::new(1).unwrap();
        assert!(!mailbox.wait(Some(Duration::ZERO), Duration::ZERO).unwrap());
        mailbox.send(b"a").unwrap();
        assert!(mailbox.wait(None, Duration::ZERO).unwrap());
        assert!(!mailbox.arm().unwrap());
        mailbox.send(b"b").unwrap();
        assert!(!is_signalled(&mailbox));
    }

    #[test]
    fn wait_ends_with_a_message_a_close_or_in_time() {
        for spin in [Duration::ZERO, Duration::from_millis(1)] {
            let mailbox = Mailbox::new(1).unwrap();
            let sleeper = mailbox.clone();
            let (waiting, awaited) = std::sync::mpsc::channel();
            let reader = thread::spawn(move || {
                waiting.send(()).unwrap();
                let first = sleeper.wait(None, spin).unwrap();
                received(&sleeper).unwrap();
                waiting.send(()).unwrap();
                (first, sleeper.wait(None, spin).unwrap(), received(&sleeper))
            });
            awaited.recv().unwrap();
            mailbox.send(b"a").unwrap();
            awaited.recv().unwrap();
            mailbox.close();
            assert_eq!(reader.join().unwrap(), (true, false, Err(Error::MailboxClosed)));
        }
        let mailbox = Mailbox::new(1).unwrap();
        assert!(!mailbox.wait(Some(Duration::from_millis(1)), Duration::ZERO).unwrap());
        assert!(!mailbox.wait(Some(Duration::from_millis(1)), Duration::MAX).unwrap());
    }

    /// Many writers, one reader: everything arrives, once, whole and in each writer's order.
    fn stress(capacity: usize, writers: u64, count: u64, spin: Duration) {
        let mailbox = without_tick(capacity);
        let longest = mailbox.max_message() as u64;
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let mailbox = mailbox.clone();
                thread::spawn(move || {
                    let mut refused = 0u64;
                    for number in 0..count {
                        let length =
                            16 + (number.wrapping_mul(0x9E37_79B9) ^ writer) % (longest - 16).min(700);
                        let mut message = vec![(number ^ writer) as u8; length as usize];
                        message[..8].copy_from_slice(&writer.to_le_bytes());
                        message[8..16].copy_from_slice(&number.to_le_bytes());
                        while let Err(error) = mailbox.send(&message) {
                            assert!(matches!(error, Error::MailboxFull { .. }));
                            refused += 1;
                            thread::yield_now();
                        }
                    }
                    refused
                })
            })
            .collect();
        let mut next = vec![0u64; writers as usize];
        let mut left = writers * count;
        while left > 0 {
            assert!(mailbox.wait(FOREVER, spin).unwrap(), "a wake-up was lost");
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let taken = mailbox.drain_with(16, |message| {
                let (writer, number) = (word(&message[..8]), word(&message[8..16]));
                assert_eq!(number, next[writer as usize]);
                assert!(message[16..].iter().all(|&byte| byte == (number ^ writer) as u8));
                next[writer as usize] += 1;
            });
            left -= taken.unwrap() as u64;
        }
        let refused: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!((received(&mailbox), mailbox.used()), (Ok(None), 0));
        assert!(refused > 0 || capacity > 4096, "a small ring must have been full at times");
    }

    #[test]
    fn no_wake_up_is_lost() {
        let (there, back) = (without_tick(1), without_tick(1));
        let rounds = 20_000;
        let echo = {
            let (there, back) = (there.clone(), back.clone());
            thread::spawn(move || {
                for _ in 0..rounds {
                    assert!(there.wait(FOREVER, Duration::ZERO).unwrap(), "a wake-up was lost");
                    there.receive_with(|message| back.send(message).unwrap()).unwrap();
                }
            })
        };
        for _ in 0..rounds {
            there.send(b"ping").unwrap();
            assert!(back.wait(FOREVER, Duration::ZERO).unwrap(), "a wake-up was lost");
            assert_eq!(back.receive_with(|message| message == b"ping"), Ok(Some(true)));
        }
        echo.join().unwrap();
    }

    #[test]
    fn many_writers_with_backpressure() {
        stress(1, 8, 4000, Duration::ZERO);
    }

    #[test]
    fn many_writers_and_a_spinning_reader() {
        stress(1 << 20, 4, 10_000, Duration::from_micros(50));
    }

    #[test]
    fn every_send_that_succeeds_before_the_close_is_delivered() {
        for _ in 0..200 {
            let mailbox = Mailbox::new(1 << 16).unwrap();
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let mailbox = mailbox.clone();
                    thread::spawn(move || {
                        let mut sent = 0u64;
                        loop {
                            match mailbox.send(b"message") {
                                Ok(()) => sent += 1,
                                Err(Error::MailboxFull { .. }) => thread::yield_now(),
                                Err(error) => return (sent, error),
                            }
                        }
                    })
                })
                .collect();
            let mut read = 0;
            while read < 50 {
                read += mailbox.drain_with(20, |_| ()).unwrap() as u64;
            }
            mailbox.close();
            loop {
                mailbox.wait(None, Duration::ZERO).unwrap();
                match mailbox.drain_with(20, |_| ()) {
                    Ok(more) => read += more as u64,
                    Err(error) => break assert_eq!(error, Error::MailboxClosed),
                }
            }
            let sent: u64 = writers
                .into_iter()
                .map(|writer| {
                    let (sent, error) = writer.join().unwrap();
                    assert_eq!(error, Error::MailboxClosed);
                    sent
                })
                .sum();
            assert_eq!(read, sent);
        }
    }

    #[test]
    fn a_dead_writers_record_is_skipped() {
        type Look = fn(&Mailbox);
        let ways: [Look; 4] = [
            |mailbox| assert!(mailbox.wait(None, Duration::ZERO).unwrap()),
            |mailbox| while !mailbox.wait(Some(Duration::ZERO), Duration::ZERO).unwrap() {},
            |mailbox| while mailbox.drain_with(0, |_| ()).unwrap() == 0 && mailbox.arm().unwrap() {},
            |mailbox| {
                // Nobody sends any more: the descriptor has to become readable by itself.
                while mailbox.drain_with(0, |_| ()).unwrap() == 0 && mailbox.arm().unwrap() {
                    assert!(poll(mailbox.descriptor().unwrap(), 30_000));
                }
            },
        ];
        for look in ways {
            let mailbox = Mailbox::new(1).unwrap();
            mailbox.send(b"before").unwrap();
            let child = fork(|| {
                let _ = mailbox.shared.ring.reserve(100);
                die();
            });
            reap(child);
            mailbox.send(b"after").unwrap();
            assert_eq!(received(&mailbox).unwrap().unwrap(), b"before");
            look(&mailbox);
            assert_eq!(received(&mailbox).unwrap().unwrap(), b"after");
            assert_eq!((received(&mailbox), mailbox.used()), (Ok(None), 0));
        }
    }

    #[test]
    fn a_living_writers_record_is_waited_for_until_it_dies() {
        let mailbox = Mailbox::new(1).unwrap();
        let child = fork(|| {
            let _ = mailbox.shared.ring.reserve(100);
            loop {
                // SAFETY: sleeps until a signal comes.
                unsafe { libc::pause() };
            }
        });
        while mailbox.used() == 0 {
            thread::yield_now();
        }
        mailbox.send(b"after").unwrap();
        for _ in 0..3 {
            assert!(!mailbox.wait(Some(2 * PATIENCE), Duration::ZERO).unwrap());
            assert_eq!(received(&mailbox), Ok(None));
        }
        // SAFETY: kills a child of ours.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert!(mailbox.wait(None, Duration::ZERO).unwrap());
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"after");
        reap(child);
    }

    #[test]
    fn a_message_whose_writer_died_before_the_wake_up_is_found() {
        let mailbox = Mailbox::new(1).unwrap();
        for armed in [false, true] {
            assert!(mailbox.arm().unwrap());
            let child = fork(|| {
                let ring = &mailbox.shared.ring;
                let _ = ring.reserve(1).map(|place| ring.publish(place, b"x"));
                die();
            });
            reap(child);
            assert!(!is_signalled(&mailbox));
            if armed {
                assert!(poll(mailbox.descriptor().unwrap(), 30_000));
            }
            assert!(mailbox.wait(None, Duration::ZERO).unwrap());
            assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
        }
    }

    #[test]
    fn an_event_loop_that_looks_at_each_tick_sleeps_in_between() {
        let mailbox = Mailbox::new(1).unwrap();
        for _ in 0..3 {
            // Arming ends the tick before. (Another may have begun meanwhile, if we were held up.)
            let asleep = |_| mailbox.arm().unwrap() && !poll(mailbox.descriptor().unwrap(), 0);
            assert!((0..100).any(asleep));
            assert!(poll(mailbox.descriptor().unwrap(), 30_000));
            assert!(!is_signalled(&mailbox));
        }
    }

    #[test]
    fn a_full_mailbox_whose_reader_died_is_closed_to_writers_until_another_reads() {
        let mailbox = Mailbox::new(1).unwrap();
        assert!(mailbox.reader_alive());
        mailbox.send(b"for the child").unwrap();
        let child = fork(|| {
            let _ = mailbox.receive_with(|_| ());
            die();
        });
        reap(child);
        assert_eq!((mailbox.used(), mailbox.reader_alive()), (0, false));
        let error = loop {
            if let Err(error) = mailbox.send(b"x") {
                break error;
            }
        };
        assert_eq!((error, mailbox.is_closed()), (Error::MailboxClosed, false));
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
        assert!(mailbox.reader_alive());
        mailbox.send(b"x").unwrap();
    }

    #[test]
    fn an_attached_mailbox_is_the_same_one() {
        let mailbox = Mailbox::new(1).unwrap();
        let (memory, event) = mailbox.descriptors();
        let peer = Mailbox::attach(memory, event).unwrap();
        assert!(mailbox.arm().unwrap());
        peer.send(b"x").unwrap();
        assert!(is_signalled(&mailbox));
        peer.close();
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
        assert_eq!(received(&mailbox), Err(Error::MailboxClosed));
        assert!(matches!(Mailbox::attach(memory, memory), Err(Error::InvalidArgument(_))));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Send(usize),
        Receive,
        Drain(usize),
        Close,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0..200usize).prop_map(Step::Send),
            6 => (0..2200usize).prop_map(Step::Send),
            16 => Just(Step::Receive),
            2 => (0..8usize).prop_map(Step::Drain),
            1 => Just(Step::Close),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_queue(steps in prop::collection::vec(step(), 1..400)) {
            let mailbox = Mailbox::new(4096).unwrap();
            let room = mailbox.capacity();
            let size = |message: &Vec<u8>| message.len().div_ceil(64).max(1) * 64;
            let (mut model, mut closed) = (VecDeque::<Vec<u8>>::new(), false);
            for (number, step) in steps.into_iter().enumerate() {
                let used: usize = model.iter().map(size).sum();
                match step {
                    Step::Send(length) => {
                        let message: Vec<u8> = (0..length).map(|byte| (byte * 31 + number) as u8).collect();
                        let free = room - used;
                        let expected = if length > room / 2 {
                            Err(Error::MessageTooLarge { length, limit: room / 2 })
                        } else if closed {
                            Err(Error::MailboxClosed)
                        } else if size(&message) > free {
                            Err(Error::MailboxFull { needed: size(&message), free })
                        } else {
                            Ok(())
                        };
                        prop_assert_eq!(mailbox.send(&message), expected.clone());
                        if expected.is_ok() {
                            model.push_back(message);
                        }
                    }
                    Step::Receive => {
                        let expected = match model.pop_front() {
                            None if closed => Err(Error::MailboxClosed),
                            message => Ok(message),
                        };
                        prop_assert_eq!(received(&mailbox), expected);
                    }
                    Step::Drain(limit) => {
                        let mut drained = Vec::new();
                        let result = mailbox.drain_with(limit, |bytes| drained.push(bytes.to_vec()));
                        let expected: Vec<_> = model.drain(..limit.min(model.len())).collect();
                        if closed && expected.is_empty() && limit > 0 {
                            prop_assert_eq!(result, Err(Error::MailboxClosed));
                        } else {
                            prop_assert_eq!(result, Ok(expected.len()));
                        }
                        prop_assert_eq!(drained, expected);
                    }
                    Step::Close => {
                        mailbox.close();
                        closed = true;
                    }
                }
                prop_assert_eq!(mailbox.used(), model.iter().map(size).sum::<usize>());
                prop_assert_eq!(mailbox.is_closed(), closed);
            }
        }
    }
}
