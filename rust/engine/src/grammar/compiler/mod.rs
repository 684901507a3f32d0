//! Compiles grammars on a thread pool, within limits, each description once for all requests that bring it.
//!
//! ```text
//!  ask ─┬─ cached: at once                 workers (a few)                      watchdog (one)
//!       ├─ in flight: wait for it too      load tokenizer, parse, lower,  ◄──── time is up: refuse, cancel, and
//!       └─ new ──► queue (bounded) ──────► build; check for cancellation        start another worker
//!  collect ◄───── ready ◄───────────────── verdict ─► cache, waiting requests, notify
//! ```
//!
//! Between its phases a worker checks whether the compilation was cancelled. A phase cannot be interrupted: when its time
//! is up, the requests are refused and the worker is *abandoned* until it returns; the number of abandoned threads is
//! bounded. The caller's thread never does more than a look-up, O(description).

mod cache;
mod job;
mod standalone;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use self::cache::Cache;
use self::job::{STACK, build, busy, panicked, too_long};
use crate::grammar::cancellation::CancelToken;
use crate::grammar::context::GrammarContext;
use crate::grammar::lowering::description::check_length;
use crate::grammar::{Compiler, Verdict};
use crate::messages::RequestKey;
use crate::telemetry::Histogram;

pub use job::{Settings, Stats};
pub use standalone::compile_within;

/// A description that timed out is refused for this long without being compiled again.
const TIMEOUT_CACHED_FOR: Duration = Duration::from_secs(60);
/// How long the watchdog sleeps where there is no deadline; a new job wakes it.
const NO_DEADLINE: Duration = Duration::from_secs(3600);

/// The compiler of an engine: a thread pool, a cache, limits.
pub struct ThreadedCompiler {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<GrammarContext>,
    settings: Settings,
    notify: Box<dyn Fn() + Send + Sync>,
    /// The function that a worker calls; tests replace it.
    build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
    state: Mutex<State>,
    /// A job was queued, or the compiler was dropped.
    work: Condvar,
    /// The watchdog has a new deadline, or the compiler was dropped.
    deadlines: Condvar,
}

struct State {
    cache: Cache,
    jobs: HashMap<Arc<[u8]>, Job>,
    /// The description that each waiting request brought.
    waiting: HashMap<RequestKey, Arc<[u8]>>,
    queue: VecDeque<(u64, Arc<[u8]>)>,
    running: Vec<Running>,
    ready: Vec<(RequestKey, Verdict)>,
    next_job: u64,
    workers: usize,
    /// Threads whose time is up and that have not returned.
    abandoned: usize,
    has_watchdog: bool,
    /// Whether the tokenizer is loaded.
    loaded: bool,
    closed: bool,
    stats: Stats,
}

/// A description that requests wait for.
struct Job {
    id: u64,
    requests: Vec<RequestKey>,
    cancel: Arc<CancelToken>,
    /// When it is refused if no thread has taken it.
    expires: Instant,
}

/// The job of a worker.
struct Running {
    job: u64,
    description: Arc<[u8]>,
    cancel: Arc<CancelToken>,
    deadline: Instant,
    abandoned: bool,
}

impl ThreadedCompiler {
    /// A compiler; `notify` is called from its threads whenever [`collect`](Compiler::collect) has new verdicts.
    pub fn new(
        context: Arc<GrammarContext>,
        settings: Settings,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self::with_build(context, settings, notify, build)
    }

    fn with_build(
        context: Arc<GrammarContext>,
        settings: Settings,
        notify: Box<dyn Fn() + Send + Sync>,
        build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
    ) -> Self {
        let stats = Stats::default();
        let state = Mutex::new(State {
            cache: Cache::new(settings.cache_bytes),
            jobs: HashMap::new(),
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            ready: Vec::new(),
            next_job: 0,
            workers: 0,
            abandoned: 0,
            has_watchdog: false,
            loaded: false,
            closed: false,
            stats,
        });
        let (work, deadlines) = (Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { context, settings, notify, build, state, work, deadlines }) }
    }

    /// Counters, and the present state of cache and queue.
    pub fn stats(&self) -> Stats {
        let state = self.shared.lock();
        Stats {
            entries: state.cache.len(),
            bytes: state.cache.bytes(),
            queued: state.queue.len(),
            abandoned: state.abandoned,
            ..state.stats.clone()
        }
    }
}

impl Compiler for ThreadedCompiler {
    fn metrics(&self) -> Vec<(&'static str, u64)> {
        let stats = self.stats();
        vec![
            ("grammar_cache_hits", stats.hits),
            ("grammar_cache_misses", stats.misses),
            ("grammar_cache_entries", stats.entries as u64),
            ("grammar_cache_bytes", stats.bytes as u64),
            ("grammar_compilations", stats.compiles),
            ("grammar_refusals", stats.refused),
            ("grammar_cancelled", stats.cancelled),
            ("grammar_timeouts", stats.timeouts),
            ("grammar_queue", stats.queued as u64),
            ("grammar_abandoned", stats.abandoned as u64),
        ]
    }

    fn compile_times(&self) -> Option<Histogram> {
        Some(self.stats().compile_ns)
    }

    fn ask(&mut self, key: RequestKey, description: &[u8]) -> Option<Verdict> {
        if let Err(refusal) = check_length(description) {
            return Some(Err(refusal));
        }
        let shared = &self.shared;
        let mut state = shared.lock();
        if let Some(verdict) = state.cache.get(description, Instant::now()) {
            state.stats.hits += 1;
            return Some(verdict);
        }
        state.stats.misses += 1;
        if let Some((content, _)) = state.jobs.get_key_value(description) {
            let content = content.clone();
            state.jobs.get_mut(description).expect("it was just there").requests.push(key);
            state.waiting.insert(key, content);
            return None;
        }
        if state.queue.len() >= shared.settings.queue {
            state.stats.refused += 1;
            return Some(Err(busy()));
        }
        let content: Arc<[u8]> = Arc::from(description);
        state.next_job += 1;
        let id = state.next_job;
        let expires = Instant::now() + 2 * shared.settings.timeout;
        state.jobs.insert(content.clone(), Job { id, requests: vec![key], cancel: Arc::default(), expires });
        state.waiting.insert(key, content.clone());
        state.queue.push_back((id, content));
        shared.start_threads(&mut state);
        drop(state);
        shared.work.notify_one();
        shared.deadlines.notify_one();
        None
    }

    fn cancel(&mut self, key: RequestKey) {
        let mut state = self.shared.lock();
        state.ready.retain(|(ready, _)| *ready != key);
        let Some(content) = state.waiting.remove(&key) else { return };
        let Some(job) = state.jobs.get_mut(&content) else { return };
        job.requests.retain(|waiting| *waiting != key);
        if job.requests.is_empty() {
            job.cancel.cancel();
            let id = job.id;
            state.jobs.remove(&content);
            state.queue.retain(|(queued, _)| *queued != id);
            state.stats.cancelled += 1;
        }
    }

    fn collect(&mut self, verdicts: &mut Vec<(RequestKey, Verdict)>) {
        verdicts.append(&mut self.shared.lock().ready);
    }
}

impl Drop for ThreadedCompiler {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
        state.running.iter().for_each(|running| running.cancel.cancel());
        drop(state);
        self.shared.work.notify_all();
        self.shared.deadlines.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads at the first use, and replaces abandoned ones.
    fn start_threads(self: &Arc<Self>, state: &mut State) {
        if !state.has_watchdog {
            let shared = self.clone();
            let spawned = std::thread::Builder::new()
                .name("grammar-watch".into())
                .spawn(move || shared.watch_deadlines());
            state.has_watchdog = spawned.is_ok();
        }
        while state.workers < self.settings.threads && state.abandoned < self.settings.max_abandoned {
            let shared = self.clone();
            let spawned = std::thread::Builder::new()
                .name("grammar".into())
                .stack_size(STACK)
                .spawn(move || shared.run_worker());
            if spawned.is_err() {
                break;
            }
            state.workers += 1;
        }
    }

    /// The loop of a worker.
    fn run_worker(&self) {
        // Loading the tokenizer does not count against the time that jobs may wait.
        let _ = self.context.load();
        let mut state = self.lock();
        if !state.loaded {
            state.loaded = true;
            let expires = Instant::now() + 2 * self.settings.timeout;
            state.jobs.values_mut().for_each(|job| job.expires = expires);
        }
        drop(state);
        loop {
            let mut state = self.lock();
            let (id, content) = loop {
                if state.closed {
                    return;
                }
                match state.queue.pop_front() {
                    Some(next) => break next,
                    None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let Some(job) = state.jobs.get(&content).filter(|job| job.id == id) else { continue };
            let cancel = job.cancel.clone();
            let started = Instant::now();
            state.running.push(Running {
                job: id,
                description: content.clone(),
                cancel: cancel.clone(),
                deadline: started + self.settings.timeout,
                abandoned: false,
            });
            drop(state);
            self.deadlines.notify_one();
            let verdict = catch_unwind(AssertUnwindSafe(|| (self.build)(&self.context, &content, &cancel)))
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            if !self.finish(id, content, &cancel, verdict, started.elapsed()) {
                return;
            }
        }
    }

    /// Takes a worker's verdict; false if the worker is no longer needed.
    fn finish(
        &self,
        id: u64,
        content: Arc<[u8]>,
        cancel: &CancelToken,
        verdict: Verdict,
        took: Duration,
    ) -> bool {
        let mut state = self.lock();
        let at =
            state.running.iter().position(|running| running.job == id).expect("run_worker has put it there");
        let abandoned = state.running.swap_remove(at).abandoned;
        // A refusal caused by the cancellation says nothing about the description.
        if !abandoned && (verdict.is_ok() || !cancel.is_cancelled()) {
            state.stats.compiles += 1;
            state.stats.refused += u64::from(verdict.is_err());
            state.stats.compile_ns.observe(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            let answered = state.settle(id, &content, verdict, Keep::Always);
            if answered && !state.closed {
                drop(state);
                (self.notify)();
            }
            return true;
        }
        if abandoned {
            state.abandoned -= 1;
            if state.workers >= self.settings.threads {
                return false;
            }
            state.workers += 1;
        }
        true
    }

    /// The loop of the watchdog.
    fn watch_deadlines(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let overdue = state.refuse_overdue(now, self.settings.timeout);
            let expired = state.refuse_expired(now);
            self.start_threads(&mut state);
            if overdue || expired {
                drop(state);
                (self.notify)();
                state = self.lock();
                continue;
            }
            let wait = state.next_deadline().map_or(NO_DEADLINE, |at| at.saturating_duration_since(now));
            state = self.deadlines.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// For how long a verdict is cached.
enum Keep {
    No,
    Always,
    For(Duration),
}

impl State {
    /// Refuses the jobs whose time is up, and abandons their threads. True if a request was waiting for one.
    fn refuse_overdue(&mut self, now: Instant, timeout: Duration) -> bool {
        let overdue: Vec<_> = self
            .running
            .iter_mut()
            .filter(|running| !running.abandoned && running.deadline <= now)
            .map(|running| {
                running.abandoned = true;
                running.cancel.cancel();
                (running.job, running.description.clone())
            })
            .collect();
        self.workers -= overdue.len();
        self.abandoned += overdue.len();
        self.stats.timeouts += overdue.len() as u64;
        self.stats.refused += overdue.len() as u64;
        overdue.iter().fold(false, |answered, (id, content)| {
            self.settle(*id, content, Err(too_long(timeout)), Keep::For(TIMEOUT_CACHED_FOR)) || answered
        })
    }

    /// Refuses the jobs that have waited too long for a thread. True if a request was waiting for one.
    fn refuse_expired(&mut self, now: Instant) -> bool {
        if !self.loaded {
            return false; // They wait for the tokenizer.
        }
        let (refused, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|(_, content)| self.jobs.get(content).is_some_and(|job| job.expires <= now));
        self.queue = left.into();
        self.stats.refused += refused.len() as u64;
        refused.iter().fold(false, |answered, (id, content)| {
            self.settle(*id, content, Err(busy()), Keep::No) || answered
        })
    }

    /// The earliest time at which a job has to be refused.
    fn next_deadline(&self) -> Option<Instant> {
        let running =
            self.running.iter().filter(|running| !running.abandoned).map(|running| running.deadline);
        let queued = self.queue.iter().filter(|_| self.loaded);
        let expires = queued.filter_map(|(_, content)| self.jobs.get(content)).map(|job| job.expires);
        running.chain(expires).min()
    }

    /// Makes the verdict ready for all requests that wait for the job; true if there is one.
    fn settle(&mut self, id: u64, content: &Arc<[u8]>, verdict: Verdict, keep: Keep) -> bool {
        match keep {
            Keep::No => {}
            Keep::Always => self.cache.insert(content.clone(), verdict.clone(), None),
            Keep::For(time) => {
                self.cache.insert(content.clone(), verdict.clone(), Some(Instant::now() + time));
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
}
