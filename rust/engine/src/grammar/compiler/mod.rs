//! Grammars compiled on other threads, within limits, once for all who ask for the same.
//!
//! ```text
//!  ask ─┬─ known: at once                  workers (a few)                      watchdog (one)
//!       ├─ in flight: one asker more       load tokenizer, parse, lower,  ◄──── time is up: refuse, cancel, and put
//!       └─ new ──► queue (bounded) ──────► build; look for cancellation         another worker in its place
//!  collect ◄───── ready ◄───────────────── verdict ─► cache, askers, notify
//! ```
//!
//! A worker looks between its phases whether anybody still waits. A phase that cannot be interrupted is left to itself
//! when its time is up: its thread is a *stray* until it comes back, their number is bounded, and the asker has his
//! refusal in time. Everything that the caller's thread does is O(description) for a look-up.

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

use crate::grammar::cancellation::CancelToken;
use crate::grammar::compiler::cache::Cache;
use crate::grammar::compiler::job::{STACK, build, busy, panicked, too_long};
use crate::grammar::context::GrammarContext;
use crate::grammar::lowering::description::check_length;
use crate::grammar::{Compiler, Verdict};
use crate::messages::RequestKey;
use crate::telemetry::Histogram;

pub use job::{Settings, Stats};
pub use standalone::compile_within;

/// How long a description that took too long is refused without another try.
const TIRED: Duration = Duration::from_secs(60);
/// How long the watchdog sleeps if it has nothing to wait for; whatever is new wakes it.
const NOTHING_DUE: Duration = Duration::from_secs(3600);

/// The compiler of an engine: threads, a cache, limits.
pub struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<GrammarContext>,
    settings: Settings,
    notify: Box<dyn Fn() + Send + Sync>,
    /// What a worker does; another in tests.
    build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
    state: Mutex<State>,
    /// Somebody queued a job, or all is over.
    work: Condvar,
    /// The watchdog has something new to wait for.
    watch: Condvar,
}

struct State {
    cache: Cache,
    jobs: HashMap<Arc<[u8]>, Job>,
    asked: HashMap<RequestKey, Arc<[u8]>>,
    queue: VecDeque<(u64, Arc<[u8]>)>,
    running: Vec<Running>,
    ready: Vec<(RequestKey, Verdict)>,
    next_job: u64,
    workers: usize,
    strays: usize,
    guarded: bool,
    loaded: bool,
    closed: bool,
    stats: Stats,
}

/// A description that somebody waits for.
struct Job {
    id: u64,
    askers: Vec<RequestKey>,
    watch: Arc<CancelToken>,
    /// When a waiting one is given up.
    patience: Instant,
}

/// What a worker is at.
struct Running {
    job: u64,
    description: Arc<[u8]>,
    watch: Arc<CancelToken>,
    due: Instant,
    abandoned: bool,
}

impl Threads {
    /// A compiler; `notify` is called from its threads whenever [`collect`](Compiler::collect) has something new.
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
            asked: HashMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            ready: Vec::new(),
            next_job: 0,
            workers: 0,
            strays: 0,
            guarded: false,
            loaded: false,
            closed: false,
            stats,
        });
        let (work, watch) = (Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { context, settings, notify, build, state, work, watch }) }
    }

    /// What has been compiled so far.
    pub fn stats(&self) -> Stats {
        let state = self.shared.lock();
        Stats {
            entries: state.cache.len(),
            bytes: state.cache.bytes(),
            queued: state.queue.len(),
            strays: state.strays,
            ..state.stats.clone()
        }
    }
}

impl Compiler for Threads {
    fn figures(&self) -> Vec<(&'static str, u64)> {
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
            ("grammar_strays", stats.strays as u64),
        ]
    }

    fn compile_times(&self) -> Option<Histogram> {
        Some(self.stats().compile_ns)
    }

    fn ask(&mut self, key: RequestKey, description: &[u8]) -> Option<Verdict> {
        if let Err(refusal) = check_length(description) {
            return Some(Err(refusal)); // Nothing of it is kept.
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
            state.jobs.get_mut(description).expect("it was just there").askers.push(key);
            state.asked.insert(key, content);
            return None;
        }
        if state.queue.len() >= shared.settings.queue {
            state.stats.refused += 1;
            return Some(Err(busy()));
        }
        let content: Arc<[u8]> = Arc::from(description);
        state.next_job += 1;
        let id = state.next_job;
        let patience = Instant::now() + 2 * shared.settings.timeout;
        state.jobs.insert(content.clone(), Job { id, askers: vec![key], watch: Arc::default(), patience });
        state.asked.insert(key, content.clone());
        state.queue.push_back((id, content));
        shared.staff(&mut state);
        drop(state);
        shared.work.notify_one();
        shared.watch.notify_one();
        None
    }

    fn cancel(&mut self, key: RequestKey) {
        let mut state = self.shared.lock();
        state.ready.retain(|(ready, _)| *ready != key);
        let Some(content) = state.asked.remove(&key) else { return };
        let Some(job) = state.jobs.get_mut(&content) else { return };
        job.askers.retain(|asker| *asker != key);
        if job.askers.is_empty() {
            job.watch.cancel();
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

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
        state.running.iter().for_each(|running| running.watch.cancel());
        drop(state);
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads at the first use, and others in the place of strays.
    fn staff(self: &Arc<Self>, state: &mut State) {
        if !state.guarded {
            let shared = self.clone();
            let spawned =
                std::thread::Builder::new().name("grammar-watch".into()).spawn(move || shared.guard());
            state.guarded = spawned.is_ok();
        }
        while state.workers < self.settings.threads && state.strays < self.settings.strays {
            let shared = self.clone();
            let spawned = std::thread::Builder::new()
                .name("grammar".into())
                .stack_size(STACK)
                .spawn(move || shared.serve());
            if spawned.is_err() {
                break;
            }
            state.workers += 1;
        }
    }

    /// A worker's life.
    fn serve(&self) {
        // The first brings the tokenizer; nobody's time runs meanwhile.
        let _ = self.context.load();
        let mut state = self.lock();
        if !state.loaded {
            state.loaded = true;
            let patience = Instant::now() + 2 * self.settings.timeout;
            state.jobs.values_mut().for_each(|job| job.patience = patience);
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
            let watch = job.watch.clone();
            let started = Instant::now();
            state.running.push(Running {
                job: id,
                description: content.clone(),
                watch: watch.clone(),
                due: started + self.settings.timeout,
                abandoned: false,
            });
            drop(state);
            self.watch.notify_one();
            let verdict = catch_unwind(AssertUnwindSafe(|| (self.build)(&self.context, &content, &watch)))
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            if !self.finish(id, content, &watch, verdict, started.elapsed()) {
                return;
            }
        }
    }

    /// Takes a worker's verdict; false if the worker is no longer needed.
    fn finish(
        &self,
        id: u64,
        content: Arc<[u8]>,
        watch: &CancelToken,
        verdict: Verdict,
        took: Duration,
    ) -> bool {
        let mut state = self.lock();
        let at = state.running.iter().position(|running| running.job == id).expect("it was put there");
        let abandoned = state.running.swap_remove(at).abandoned;
        // A refusal that came from the cancellation says nothing about the description.
        if !abandoned && (verdict.is_ok() || !watch.is_cancelled()) {
            state.stats.compiles += 1;
            state.stats.refused += u64::from(verdict.is_err());
            state.stats.compile_ns.observe(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            let told = state.settle(id, &content, verdict, Keep::Always);
            if told && !state.closed {
                drop(state);
                (self.notify)();
            }
            return true;
        }
        if abandoned {
            state.strays -= 1;
            if state.workers >= self.settings.threads {
                return false;
            }
            state.workers += 1;
        }
        true
    }

    /// The watchdog's life.
    fn guard(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let late = state.refuse_late(now, self.settings.timeout);
            let impatient = state.refuse_impatient(now);
            let told = late || impatient;
            self.staff(&mut state);
            if told {
                drop(state);
                (self.notify)();
                state = self.lock();
                continue;
            }
            let wait = state.next_look().map_or(NOTHING_DUE, |at| at.saturating_duration_since(now));
            state = self.watch.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// For how long a verdict is remembered.
enum Keep {
    No,
    Always,
    For(Duration),
}

impl State {
    /// Gives up on what has taken too long: its thread is a stray now. True if anybody is told.
    fn refuse_late(&mut self, now: Instant, timeout: Duration) -> bool {
        let late: Vec<_> = self
            .running
            .iter_mut()
            .filter(|running| !running.abandoned && running.due <= now)
            .map(|running| {
                running.abandoned = true;
                running.watch.cancel();
                (running.job, running.description.clone())
            })
            .collect();
        self.workers -= late.len();
        self.strays += late.len();
        self.stats.timeouts += late.len() as u64;
        self.stats.refused += late.len() as u64;
        late.iter().fold(false, |told, (id, content)| {
            self.settle(*id, content, Err(too_long(timeout)), Keep::For(TIRED)) || told
        })
    }

    /// Gives up on what has waited too long for a thread. True if anybody is told.
    fn refuse_impatient(&mut self, now: Instant) -> bool {
        if !self.loaded {
            return false; // They wait for the tokenizer, and that is nobody's fault.
        }
        let (refused, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|(_, content)| self.jobs.get(content).is_some_and(|job| job.patience <= now));
        self.queue = left.into();
        self.stats.refused += refused.len() as u64;
        refused
            .iter()
            .fold(false, |told, (id, content)| self.settle(*id, content, Err(busy()), Keep::No) || told)
    }

    /// When somebody's time will be up next.
    fn next_look(&self) -> Option<Instant> {
        let due = self.running.iter().filter(|running| !running.abandoned).map(|running| running.due);
        let waiting = self.queue.iter().filter(|_| self.loaded);
        let patience = waiting.filter_map(|(_, content)| self.jobs.get(content)).map(|job| job.patience);
        due.chain(patience).min()
    }

    /// Tells everybody who asked; true if there was anybody.
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
        for key in &job.askers {
            self.asked.remove(key);
            self.ready.push((*key, verdict.clone()));
        }
        !job.askers.is_empty()
    }
}
