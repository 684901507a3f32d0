//! Compiles grammars on a thread pool, within limits, each description once for all requests that bring it.
//!
//! ```text
//!  ask ─┬─ cached: at once                 workers (a few)                      watchdog (one)
//!       ├─ in flight: wait for it too      load tokenizer, parse, lower,  ◄──── it is slow: lower priority, and
//!       └─ new ──► queue (bounded) ──────► build; check for cancellation        another worker
//!  collect ◄───── ready ◄───────────────── verdict ─► cache, waiting requests,  CPU time is up: refuse, cancel
//!                                          notify                               a wait is too long: busy, it goes on
//!                                                                               later: give memory back
//! ```
//!
//! Between its phases, and often within lowering, a worker checks whether the compilation was cancelled or holds too much
//! memory. llguidance's part cannot be interrupted: when the time is up, the requests are refused and the worker is
//! *abandoned* until it returns. The numbers of slow and abandoned threads are bounded, in all and for each tenant. The
//! caller's thread never does more than a look-up, O(description).

mod blame;
mod cache;
mod cpu_time;
mod job;
mod queue;
mod standalone;
mod state;
#[cfg(test)]
mod tests;
mod threads;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use hashbrown::HashMap;

use self::cache::Cache;
use self::job::{build, busy, no_threads};
use self::queue::{Queue, Waiting};
use self::state::{Job, Pace, Shared, State};
use crate::cancellation::CancelToken;
use crate::context::GrammarContext;
use crate::lowering::description::check_length;
use pyengine_base::memory;
use pyengine_grammar::{Compiler, Verdict};
use pyengine_messages::RequestKey;
use pyengine_telemetry::Histogram;

pub use job::{Settings, Stats, prepare};
pub use standalone::compile_within;

/// The compiler of an engine: a thread pool, a cache, limits.
pub struct ThreadedCompiler {
    shared: Arc<Shared>,
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
        memory::share_arenas();
        let stats = Stats::default();
        let state = Mutex::new(State {
            cache: Cache::new(settings.cache_bytes),
            jobs: HashMap::new(),
            waiting: HashMap::new(),
            queue: Queue::default(),
            running: Vec::new(),
            ready: Vec::new(),
            next_job: 0,
            workers: 0,
            give_back: None,
            freed: 0,
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
            slow: state.running(Pace::Slow),
            abandoned: state.running(Pace::Abandoned),
            ..state.stats.clone()
        }
    }
}

impl Compiler for ThreadedCompiler {
    fn metrics(&self) -> Vec<(&'static str, u64)> {
        let stats = self.stats();
        let [mask_hits, mask_misses, mask_bytes] = self.shared.context.mask_counts();
        vec![
            ("grammar_mask_hits", mask_hits),
            ("grammar_mask_misses", mask_misses),
            ("grammar_mask_bytes", mask_bytes),
            ("grammar_cache_hits", stats.hits),
            ("grammar_cache_misses", stats.misses),
            ("grammar_cache_entries", stats.entries as u64),
            ("grammar_cache_bytes", stats.bytes as u64),
            ("grammar_compilations", stats.compiles),
            ("grammar_refusals", stats.refused),
            ("grammar_cancelled", stats.cancelled),
            ("grammar_timeouts", stats.timeouts),
            ("grammar_queue", stats.queued as u64),
            ("grammar_slow", stats.slow as u64),
            ("grammar_abandoned", stats.abandoned as u64),
        ]
    }

    fn compile_times(&self) -> Option<Histogram> {
        Some(self.stats().compile_ns)
    }

    fn ask(&mut self, key: RequestKey, tenant: u64, description: &[u8]) -> Option<Verdict> {
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
            let job = state.jobs.get_mut(description).expect("it was just there");
            job.requests.push((key, shared.settings.patience()));
            state.waiting.insert(key, content);
            return None;
        }
        let most = shared.settings.queue;
        if state.queue.len() >= most || state.queue.of(tenant) >= most.div_ceil(2) {
            state.stats.refused += 1;
            return Some(Err(busy()));
        }
        if !shared.start_threads(&mut state) {
            state.stats.refused += 1;
            return Some(Err(no_threads()));
        }
        let content: Arc<[u8]> = Arc::from(description);
        state.next_job += 1;
        let id = state.next_job;
        let requests = vec![(key, shared.settings.patience())];
        state.jobs.insert(content.clone(), Job { id, requests, cancel: Arc::default() });
        state.waiting.insert(key, content.clone());
        state.queue.push(Waiting { job: id, tenant, content });
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
        job.requests.retain(|(waiting, _)| *waiting != key);
        if job.requests.is_empty() {
            job.cancel.cancel();
            let id = job.id;
            state.jobs.remove(&content);
            state.queue.extract(|waiting| waiting.job == id);
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
        state.queue = Queue::default();
        state.running.iter().for_each(|running| running.cancel.cancel());
        drop(state);
        self.shared.work.notify_all();
        self.shared.deadlines.notify_all();
    }
}
