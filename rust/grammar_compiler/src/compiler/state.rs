//! What the compiler's owner and its threads share: the jobs, who waits for them, who works on them.
//!
//! All of it stands behind one lock, which is never held while a description is compiled.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::cache::Cache;
use super::cpu_time::CpuClock;
use super::job::{Settings, Stats, busy, too_long, under_way};
use super::queue::{Queue, Waiting};
use crate::cancellation::CancelToken;
use crate::context::GrammarContext;
use pyengine_grammar::Verdict;
use pyengine_messages::RequestKey;

/// By how much the priority of a slow compilation is lower than others'. It still gets its share, and frees its place.
const LOWER: libc::c_int = 5;
/// The watchdog looks no sooner at a thread again that has little CPU time left.
const SOONEST: Duration = Duration::from_millis(5);
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
    /// The requests, each with the end of its wait; the first come end first. None may be left of one that a thread has.
    pub requests: Vec<(RequestKey, Instant)>,
    pub cancel: Arc<CancelToken>,
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
    pub cpu: CpuClock,
    pub pace: Pace,
    /// The worker's thread, as the system numbers it.
    pub thread: libc::pid_t,
}

impl Running {
    /// Lowers the priority of its thread.
    fn yield_to_others(&self) {
        let thread = self.thread as libc::id_t;
        // SAFETY: both only concern the priority of that thread, which lives at least until its job has left `running`.
        unsafe {
            let now = libc::getpriority(libc::PRIO_PROCESS, thread);
            libc::setpriority(libc::PRIO_PROCESS, thread, now + LOWER);
        }
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For how long a verdict is cached.
pub(super) enum Keep {
    Always,
    For(Duration),
}

impl State {
    /// Refuses the requests that have waited too long; what a thread has goes on. True if there are any.
    pub fn refuse_expired(&mut self, now: Instant) -> bool {
        if !self.loaded {
            return false; // They wait for the tokenizer.
        }
        let before = self.ready.len();
        for job in self.jobs.values_mut() {
            let late = job.requests.partition_point(|(_, until)| *until <= now);
            let has_thread = || self.running.iter().any(|running| running.job == job.id);
            let refusal = || if has_thread() { under_way() } else { busy() };
            let refused: Vec<_> = job.requests.drain(..late).map(|(key, _)| key).collect();
            self.ready.extend(refused.into_iter().map(|key| (key, Err(refusal()))));
        }
        let refused = &self.ready[before..];
        self.stats.refused += refused.len() as u64;
        refused.iter().for_each(|(key, _)| drop(self.waiting.remove(key)));
        let jobs = &mut self.jobs;
        let unwanted =
            |waiting: &Waiting| jobs.get(&waiting.content).is_some_and(|job| job.requests.is_empty());
        for waiting in self.queue.extract(unwanted) {
            jobs.remove(&waiting.content);
        }
        self.ready.len() > before
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
            Keep::Always => self.cache.insert(content.clone(), verdict.clone(), held, now, None),
            Keep::For(time) => {
                self.cache.insert(content.clone(), verdict.clone(), held, now, Some(now + time));
            }
        }
        if self.jobs.get(content).is_none_or(|job| job.id != id) {
            return false;
        }
        let job = self.jobs.remove(content).expect("it was just there");
        for (key, _) in &job.requests {
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
    pub fn slow_down(&mut self, settings: &Settings) {
        while self.may_slow_down(settings.max_slow)
            && let Some(running) = self
                .running
                .iter_mut()
                .find(|running| running.pace == Pace::Quick && running.cpu.elapsed() >= settings.slow_after)
        {
            running.pace = Pace::Slow;
            running.yield_to_others();
            self.workers -= 1;
        }
    }

    /// Refuses the jobs whose time is up, and abandons their threads. True if a request was waiting for one.
    pub fn refuse_overdue(&mut self, timeout: Duration) -> bool {
        let mut overdue = Vec::new();
        for running in &mut self.running {
            if running.pace != Pace::Abandoned && running.cpu.elapsed() >= timeout {
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

    /// The earliest time at which something may have to be done: no thread takes more CPU time than there is.
    pub fn next_deadline(&self, now: Instant, settings: &Settings) -> Option<Instant> {
        let may_slow_down = self.may_slow_down(settings.max_slow);
        let running = self.running.iter().filter(|running| running.pace != Pace::Abandoned).map(|running| {
            let slows_down = running.pace == Pace::Quick && may_slow_down;
            let most = if slows_down { settings.slow_after.min(settings.timeout) } else { settings.timeout };
            now + most.saturating_sub(running.cpu.elapsed()).max(SOONEST)
        });
        let jobs = self.jobs.values().filter(|_| self.loaded);
        let expires = jobs.filter_map(|job| job.requests.first()).map(|(_, until)| *until);
        running.chain(expires).chain(self.give_back).min()
    }
}
