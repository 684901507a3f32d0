//! The Detokenizer actor: one thread, which never takes the GIL.
//!
//! ```text
//!  inbox ── OpenStream, TokensOut ──► Requests ──► one Deltas a frontend a step
//!    ▲ spin, then sleep                  └───────► StopMatched, Abort to the scheduler
//! ```
//!
//! It never blocks on a ring: a message that finds no room waits in an outbox and is sent with the next one, or after
//! [`RETRY`]. The thread ends when its inbox is closed and read; slow readers have [`DRAIN_TIMEOUT`] to catch up then. If it
//! fails, it keeps the reason and closes all its mailboxes, so that no actor waits for it. A message costs what its rows
//! do, and O(frontends).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::requests::Requests;
use super::vocabulary::Vocabulary;
use pyengine_base::error::{Error, Result, panic_message};
use pyengine_mailbox::Mailbox;
use pyengine_telemetry::{Span, Stage, Timeline, Track};

/// How long the thread spins for the next message before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// After how long a message that found no room is sent again.
const RETRY: Duration = Duration::from_millis(1);
/// How long slow readers have after the inbox was closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the frontends' processes are checked while they have requests.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The handle. Dropping it does not end the thread; closing the inbox does.
pub struct Detokenizer {
    worker: Mutex<Option<Worker>>,
    shared: Arc<Shared>,
}

/// The state that the thread and its handle share.
#[derive(Default)]
struct Shared {
    open_streams: AtomicUsize,
    ignored: AtomicU64,
    /// Why the thread failed.
    failure: Mutex<Option<String>>,
    ended: Mutex<bool>,
    on_end: Condvar,
}

impl Detokenizer {
    /// An actor that reads `inbox`; frontend `i` of a request's key is `frontends[i]`. `timeline` gets its spans.
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        inbox: Mailbox,
        scheduler: Mailbox,
        frontends: Vec<Mailbox>,
        timeline: Timeline,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let requests = Requests::new(vocabulary, scheduler, frontends);
        let worker = Worker { inbox, requests, shared: shared.clone(), checked: Instant::now(), timeline };
        Self { worker: Mutex::new(Some(worker)), shared }
    }

    /// Starts the thread. `InvalidArgument` the second time.
    pub fn start(&self) -> Result<()> {
        let worker = lock(&self.worker).take();
        let worker =
            worker.ok_or_else(|| Error::InvalidArgument("the detokenizer was started before".into()))?;
        let thread = thread::Builder::new().name("pyengine-detok".into());
        let spawned = thread.spawn(move || worker.run_to_end());
        spawned.map(drop).map_err(|error| {
            conclude(&self.shared, &[], || Err(Error::System(error.to_string())));
            Error::System(error.to_string())
        })
    }

    /// Waits for the thread to end; true if it has. `InvalidArgument` if it was never started.
    pub fn join(&self, timeout: Option<Duration>) -> Result<bool> {
        if lock(&self.worker).is_some() {
            return Err(Error::InvalidArgument("the detokenizer was not started".into()));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut ended = lock(&self.shared.ended);
        while !*ended {
            let Some(deadline) = deadline else {
                ended = self.shared.on_end.wait(ended).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            ended = self.shared.on_end.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    /// Number of requests that it has state for.
    pub fn open_streams(&self) -> usize {
        self.shared.open_streams.load(Relaxed)
    }

    /// How many messages were for a frontend or a request that it does not know.
    pub fn ignored(&self) -> u64 {
        self.shared.ignored.load(Relaxed)
    }

    /// Why the thread failed, if it did.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }
}

struct Worker {
    inbox: Mailbox,
    requests: Requests,
    shared: Arc<Shared>,
    /// When the frontends' processes were last checked.
    checked: Instant,
    timeline: Timeline,
}

impl Worker {
    /// The thread's function.
    fn run_to_end(mut self) {
        let mut mailboxes = vec![self.inbox.clone(), self.requests.scheduler.mailbox().clone()];
        mailboxes.extend(self.requests.frontends.iter().map(|frontend| frontend.mailbox().clone()));
        let shared = self.shared.clone();
        conclude(&shared, &mailboxes, || self.run());
    }

    fn run(&mut self) -> Result<()> {
        loop {
            match self.receive() {
                Ok(true) => {}
                Ok(false) => {
                    self.flush()?;
                    self.inbox.wait(self.wait_limit(), SPIN)?;
                }
                Err(Error::MailboxClosed) => return self.drain(),
                Err(error) => return Err(error),
            }
            self.check_frontends()?;
        }
    }

    /// Handles one message; false if there was none.
    fn receive(&mut self) -> Result<bool> {
        let (requests, timeline) = (&mut self.requests, &self.timeline);
        let mut start = 0;
        let received = self.inbox.receive_with(|message| {
            timeline.set_step(timeline.step() + 1);
            start = timeline.begin();
            requests.handle(message)
        });
        let Some(handled) = received? else { return Ok(false) };
        self.account(start);
        // A MailboxClosed must not be taken for the inbox's.
        handled.map_err(|error| Error::System(error.to_string()))?;
        self.flush()?;
        self.timeline.end_span(Stage::Message);
        Ok(true)
    }

    /// Records the spans of the message that came at `start`. Decoding and the search for stop strings alternate at every
    /// token; the spans show one after the other.
    fn account(&self, start: u64) {
        let now = self.timeline.begin();
        if start == 0 || now == 0 {
            return;
        }
        let (track, step) = (Track::Detokenizer, self.timeline.step());
        let middle = now - self.requests.stop_share.of(now - start);
        self.timeline.record(Span { stage: Stage::Detokenize, track, start, end: middle, step });
        self.timeline.record(Span { stage: Stage::StopMatch, track, start: middle, end: now, step });
    }

    fn flush(&mut self) -> Result<()> {
        let requests = &mut self.requests;
        self.shared.ignored.store(requests.ignored, Relaxed);
        // Before the last delta is sent, so that its reader does not count the request as open.
        self.shared.open_streams.store(requests.len(), Relaxed);
        for frontend in 0..requests.frontends.len() {
            match requests.frontends[frontend].flush() {
                Ok(()) => {}
                Err(Error::MailboxClosed) => requests.drop_frontend(frontend as u32)?,
                Err(error) => return Err(error),
            }
        }
        self.shared.open_streams.store(requests.len(), Relaxed);
        requests.scheduler.flush()
    }

    fn check_frontends(&mut self) -> Result<()> {
        if self.requests.len() == 0 || self.checked.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        self.checked = Instant::now();
        for index in 0..self.requests.frontends.len() {
            let frontend = &mut self.requests.frontends[index];
            if frontend.is_open() && !frontend.mailbox().reader_alive() {
                // The mailbox stays open for the process that replaces the dead one.
                frontend.abandon();
                self.requests.drop_frontend(index as u32)?;
            }
        }
        self.shared.open_streams.store(self.requests.len(), Relaxed);
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        let requests = &self.requests;
        requests.scheduler.is_waiting() || requests.frontends.iter().any(|frontend| frontend.is_waiting())
    }

    fn wait_limit(&self) -> Option<Duration> {
        match (self.is_waiting(), self.requests.len()) {
            (true, _) => Some(RETRY),
            (false, 0) => None,
            (false, _) => Some(CHECK_INTERVAL),
        }
    }

    /// Sends what still waits, within [`DRAIN_TIMEOUT`].
    fn drain(&mut self) -> Result<()> {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        self.flush()?;
        while self.is_waiting() && Instant::now() < deadline {
            thread::sleep(RETRY);
            self.flush()?;
        }
        Ok(())
    }
}

/// Runs `work`; if it fails, keeps the reason and closes the mailboxes.
fn conclude(shared: &Shared, mailboxes: &[Mailbox], work: impl FnOnce() -> Result<()>) {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(format!("panic: {}", panic_message(&*panic))),
    };
    if failure.is_some() {
        *lock(&shared.failure) = failure;
        mailboxes.iter().for_each(Mailbox::close);
    }
    shared.open_streams.store(0, Relaxed);
    *lock(&shared.ended) = true;
    shared.on_end.notify_all();
}

/// Locks a mutex whose contents a panic cannot leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
