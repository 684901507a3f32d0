//! The threads of the compiler: workers, which compile, and the watchdog, which sees to it that none holds up others.
//!
//! ```text
//!  worker   quick ──50 ms──► slow: lower priority, ends with its job ──time is up──► abandoned: its verdict is dropped
//!             ▲ a new worker in its place ◄──┘
//! ```
//!
//! Times are CPU times of the worker. A slow worker ends with its job, as no thread can raise its priority again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::cache::IDLE_AFTER;
use super::cpu_time::CpuClock;
use super::job::{panicked, prepare};
use super::state::{Keep, Pace, Running, Shared, State};
use crate::cancellation::CancelToken;
use pyengine_base::memory;
use pyengine_grammar::Verdict;

/// How long the watchdog sleeps where there is no deadline; a new job wakes it.
const NO_DEADLINE: Duration = Duration::from_secs(3600);
/// A compilation that has held more bytes leaves memory to give back. That takes milliseconds, and so waits until the
/// grammar may be idle.
const MUCH: usize = 4 << 20;
/// Once compilations have freed more bytes than that, it waits no longer: else what is free in one thread's arena
/// comes on top of what another thread takes anew.
const MOST_FREED: usize = 64 << 20;

/// What a worker has made of its job.
struct Done {
    verdict: Verdict,
    took: Duration,
    held: usize,
    peak: usize,
}

impl Shared {
    /// Starts the threads at the first use, and as many workers as are missing. All threads together stay bounded.
    /// False where the machine gives none, so that a job would wait for ever.
    pub(super) fn start_threads(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.has_watchdog {
            let shared = self.clone();
            let spawned = std::thread::Builder::new()
                .name("grammar-watch".into())
                .spawn(move || shared.watch_deadlines());
            state.has_watchdog = spawned.is_ok();
        }
        let held = state.running(Pace::Slow) + state.running(Pace::Abandoned);
        let most =
            self.settings.threads.min((self.settings.threads + self.settings.max_slow).saturating_sub(held));
        while !state.closed && state.workers < most {
            let shared = self.clone();
            let spawned = std::thread::Builder::new()
                .name("grammar".into())
                .stack_size(self.settings.stack)
                .spawn(move || shared.run_worker());
            if spawned.is_err() {
                return state.has_watchdog && state.workers + held > 0;
            }
            state.workers += 1;
        }
        state.has_watchdog
    }

    /// The loop of a worker.
    fn run_worker(self: Arc<Self>) {
        // Loading the tokenizer does not count against the time that jobs may wait.
        let _ = self.context.load();
        let mut state = self.lock();
        if !state.loaded {
            state.loaded = true;
            let until = self.settings.patience();
            let requests = state.jobs.values_mut().flat_map(|job| &mut job.requests);
            requests.for_each(|(_, end)| *end = until);
        }
        drop(state);
        while let Some((id, content, cancel)) = self.next_job() {
            self.deadlines.notify_one();
            memory::measure();
            let started = Instant::now();
            let verdict = catch_unwind(AssertUnwindSafe(|| (self.build)(&self.context, &content, &cancel)))
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            let compiled = verdict.as_ref().ok().cloned();
            let done = Done { verdict, took: started.elapsed(), held: memory::held(), peak: memory::peak() };
            if !self.finish(id, &content, &cancel, done) {
                return;
            }
            if let Some(compiled) = compiled {
                prepare(&compiled, || self.has_work());
            }
        }
    }

    /// Whether a job waits, or the compiler was dropped.
    fn has_work(&self) -> bool {
        let state = self.lock();
        state.closed || state.queue.iter().next().is_some()
    }

    /// Waits for a job, and makes it this thread's; None where the compiler was dropped.
    fn next_job(&self) -> Option<(u64, Arc<[u8]>, Arc<CancelToken>)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let State { queue, running, .. } = &mut *state;
            let under_way = |tenant| running.iter().filter(|running| running.tenant == tenant).count();
            let Some(next) = queue.take(self.settings.share(), under_way) else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(job) = state.jobs.get(&next.content).filter(|job| job.id == next.job) else { continue };
            let cancel = job.cancel.clone();
            state.running.push(Running {
                job: next.job,
                tenant: next.tenant,
                description: next.content.clone(),
                cancel: cancel.clone(),
                cpu: CpuClock::begin(),
                pace: Pace::Quick,
                // SAFETY: it has no arguments and cannot fail.
                thread: unsafe { libc::gettid() },
            });
            return Some((next.job, next.content, cancel));
        }
    }

    /// Takes a worker's verdict; false if the worker is to end.
    fn finish(self: &Arc<Self>, id: u64, content: &Arc<[u8]>, cancel: &CancelToken, done: Done) -> bool {
        let mut state = self.lock();
        let at =
            state.running.iter().position(|running| running.job == id).expect("next_job has put it there");
        let pace = state.running.swap_remove(at).pace;
        if done.peak > MUCH {
            state.give_back.get_or_insert(Instant::now() + IDLE_AFTER);
            self.deadlines.notify_one();
        }
        state.freed += done.peak.saturating_sub(done.held);
        let give_back = state.freed > MOST_FREED;
        if give_back {
            state.freed = 0;
        }
        let mut answered = false;
        // A refusal caused by the cancellation says nothing about the description.
        if pace != Pace::Abandoned && (done.verdict.is_ok() || !cancel.is_cancelled()) {
            state.stats.compiles += 1;
            state.stats.refused += u64::from(done.verdict.is_err());
            state.stats.compile_ns.observe(u64::try_from(done.took.as_nanos()).unwrap_or(u64::MAX));
            answered = state.settle(id, content, done.verdict, done.held, Keep::Always) && !state.closed;
        }
        self.start_threads(&mut state);
        drop(state);
        if give_back {
            memory::give_back();
        }
        // Its tenant may have another one under way now.
        self.work.notify_all();
        if answered {
            (self.notify)();
        }
        pace == Pace::Quick
    }

    /// The loop of the watchdog.
    fn watch_deadlines(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let overdue = state.refuse_overdue(self.settings.timeout);
            let expired = state.refuse_expired(now);
            state.slow_down(&self.settings);
            self.start_threads(&mut state);
            if overdue || expired {
                drop(state);
                (self.notify)();
                state = self.lock();
                continue;
            }
            if state.give_back.take_if(|at| *at <= now).is_some() {
                state.cache.shrink_idle(now);
                state.freed = 0;
                state.give_back = state.cache.is_large().then_some(now + IDLE_AFTER);
                drop(state);
                let given = memory::give_back();
                state = self.lock();
                // Requests that have just ended, and threads, may hold some for a moment longer.
                if given > MUCH {
                    state.give_back.get_or_insert(Instant::now() + IDLE_AFTER);
                }
                continue;
            }
            let wait = state.next_deadline(now, &self.settings);
            let wait = wait.map_or(NO_DEADLINE, |at| at.saturating_duration_since(now));
            state = self.deadlines.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
