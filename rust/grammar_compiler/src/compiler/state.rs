//! What the compiler's owner and its threads share: the jobs, who waits for them, who works on them.
//!
//! All of it stands behind one lock, which is never held while a description is compiled.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::cache::Cache;
use super::job::{Settings, Stats, busy, too_long};
use super::queue::{Queue, Waiting};
use crate::cancellation::CancelToken;
use crate::context::GrammarContext;
use pyengine_grammar::Verdict;
use pyengine_messages::RequestKey;

/// A description that timed out is refused for this long without being compiled again.
const TIMEOUT_CACHED_FOR: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    pub context: Arc<GrammarContext>,
    pub settings: Settings,
    pub notify: Box<dyn Fn() + Send + Sync>,
    /// The function that a worker calls; tests replace it.
    pub build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
    pub state: Mutex<State>,
    /// A job was queued, or the compiler was dropped.
    pub work: Condvar,
    /// The watchdog has a new deadline, or the compiler was dropped.
    pub deadlines: Condvar,
}

pub(super) struct State {
    pub cache: Cache,
    pub jobs: HashMap<Arc<[u8]>, Job>,
    /// The description that each waiting request brought.
    pub waiting: HashMap<RequestKey, Arc<[u8]>>,
    pub queue: Queue,
    pub running: Vec<Running>,
    pub ready: Vec<(RequestKey, Verdict)>,
    pub next_job: u64,
    /// Threads that compile or wait for work, slow and abandoned ones aside.
    pub workers: usize,
    /// When memory that compilations have freed is given back to the system.
    pub give_back: Option<Instant>,
    /// Bytes that compilations have freed since it was last given back.
    pub freed: usize,
    pub has_watchdog: bool,
    /// Whether the tokenizer is loaded.
    pub loaded: bool,
    pub closed: bool,
    pub stats: Stats,
}

/// A description that requests wait for.
pub(super) struct Job {
    pub id: u64,
    pub requests: Vec<RequestKey>,
    pub cancel: Arc<CancelToken>,
    /// When it is refused if no thread has taken it.
    pub expires: Instant,
}

/// How far a compilation has come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Quick,
    /// The compilation has taken long, and another worker has taken the place of its own.
    Slow,
    /// Its time was up, and its requests were refused.
    Abandoned,
}

/// The job of a worker.
pub(super) struct Running {
    pub job: u64,
    pub tenant: u64,
    pub description: Arc<[u8]>,
    pub cancel: Arc<CancelToken>,
    pub slow_at: Instant,
    pub deadline: Instant,
    pub pace: Pace,
    /// The worker's thread, as the system numbers it.
    pub thread: libc::pid_t,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For how long a verdict is cached.
pub(super) enum Keep {
    No,
    Always,
    For(Duration),
}

impl State {
    /// Refuses the jobs that have waited too long for a thread. True if a request was waiting for one.
    pub fn refuse_expired(&mut self, now: Instant) -> bool {
        if !self.loaded {
            return false; // They wait for the tokenizer.
        }
        let jobs = &self.jobs;
        let expired = |waiting: &Waiting| jobs.get(&waiting.content).is_some_and(|job| job.expires <= now);
        let refused = self.queue.extract(expired);
        self.stats.refused += refused.len() as u64;
        let mut answered = false;
        for waiting in &refused {
            answered |= self.settle(waiting.job, &waiting.content, Err(busy()), 0, Keep::No);
        }
        answered
    }

    /// Makes the verdict, which holds `held` bytes, ready for all requests that wait for the job; true if there is one.
    pub fn settle(
        &mut self,
        id: u64,
        content: &Arc<[u8]>,
        verdict: Verdict,
        held: usize,
        keep: Keep,
    ) -> bool {
        let now = Instant::now();
        match keep {
            Keep::No => {}
            Keep::Always => self.cache.insert(content.clone(), verdict.clone(), held, now, None),
            Keep::For(time) => {
                self.cache.insert(content.clone(), verdict.clone(), held, now, Some(now + time));
            }
        }
        if self.jobs.get(content).is_none_or(|job| job.id != id) {
            return false;
        }
        let job = self.jobs.remove(content).expect("it was just there");
        for key in &job.requests {
            self.waiting.remove(key);
            self.ready.push((*key, verdict.clone()));
        }
        !job.requests.is_empty()
    }

    /// How many compilations go at this pace.
    pub fn running(&self, pace: Pace) -> usize {
        self.running.iter().filter(|running| running.pace == pace).count()
    }

    /// Whether one more compilation may become slow.
    fn may_slow_down(&self, most: usize) -> bool {
        self.running(Pace::Slow) + self.running(Pace::Abandoned) < most
    }

    /// Makes the jobs slow that have taken long, while there may be more such.
    pub fn slow_down(&mut self, now: Instant, most: usize) {
        while self.may_slow_down(most)
            && let Some(running) =
                self.running.iter_mut().find(|running| running.pace == Pace::Quick && running.slow_at <= now)
        {
            running.pace = Pace::Slow;
            // SAFETY: it only sets the priority of that thread, which lives at least until its job has left `running`.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, running.thread as libc::id_t, 19) };
            self.workers -= 1;
        }
    }

    /// Refuses the jobs whose time is up, and abandons their threads. True if a request was waiting for one.
    pub fn refuse_overdue(&mut self, now: Instant, timeout: Duration) -> bool {
        let mut overdue = Vec::new();
        for running in &mut self.running {
            if running.pace != Pace::Abandoned && running.deadline <= now {
                self.workers -= usize::from(running.pace == Pace::Quick);
                running.pace = Pace::Abandoned;
                running.cancel.cancel();
                overdue.push((running.job, running.description.clone()));
            }
        }
        self.stats.timeouts += overdue.len() as u64;
        self.stats.refused += overdue.len() as u64;
        let mut answered = false;
        for (id, content) in &overdue {
            answered |= self.settle(*id, content, Err(too_long(timeout)), 0, Keep::For(TIMEOUT_CACHED_FOR));
        }
        answered
    }

    /// The earliest time at which something has to be done.
    pub fn next_deadline(&self, max_slow: usize) -> Option<Instant> {
        let may_slow_down = self.may_slow_down(max_slow);
        let running = self.running.iter().filter_map(|running| match running.pace {
            Pace::Quick if may_slow_down => Some(running.slow_at.min(running.deadline)),
            Pace::Quick | Pace::Slow => Some(running.deadline),
            Pace::Abandoned => None,
        });
        let queued = self.queue.iter().filter(|_| self.loaded);
        let expires = queued.filter_map(|waiting| self.jobs.get(&waiting.content)).map(|job| job.expires);
        running.chain(expires).chain(self.give_back).min()
    }
}
