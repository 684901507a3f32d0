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

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::cache::Cache;
use super::context::GrammarContext;
use super::description::{Description, LONGEST};
use super::job::{STACK, build, busy, panicked, too_long};
use super::{Compiler, Verdict};
use crate::messages::RequestKey;

pub use super::alone::compile_within;
pub use super::job::{Settings, Stats, Watch};

/// How long a description that took too long is refused without another try.
const TIRED: Duration = Duration::from_secs(60);
/// The compiler of an engine: threads, a cache, limits.
pub struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<GrammarContext>,
    settings: Settings,
    notify: Box<dyn Fn() + Send + Sync>,
    /// What a worker does; another in tests.
    build: fn(&GrammarContext, &[u8], &Watch) -> Verdict,
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
    watch: Arc<Watch>,
    /// When a waiting one is given up.
    patience: Instant,
}

/// What a worker is at.
struct Running {
    job: u64,
    description: Arc<[u8]>,
    watch: Arc<Watch>,
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
        build: fn(&GrammarContext, &[u8], &Watch) -> Verdict,
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
    fn ask(&mut self, key: RequestKey, description: &[u8]) -> Option<Verdict> {
        if description.len() > LONGEST {
            // Read only far enough to say so; nothing of it is kept.
            return Some(Description::parse(description).map(|_| unreachable!("it is too long")));
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
    fn finish(&self, id: u64, content: Arc<[u8]>, watch: &Watch, verdict: Verdict, took: Duration) -> bool {
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
            let mut told = false;
            let late: Vec<_> = state.running.iter_mut().filter(|it| !it.abandoned && it.due <= now).collect();
            let late: Vec<_> = late
                .into_iter()
                .map(|running| {
                    running.abandoned = true;
                    running.watch.cancel();
                    (running.job, running.description.clone())
                })
                .collect();
            for (id, content) in late {
                state.workers -= 1;
                state.strays += 1;
                state.stats.timeouts += 1;
                state.stats.refused += 1;
                let verdict = Err(too_long(self.settings.timeout));
                told |= state.settle(id, &content, verdict, Keep::For(TIRED));
            }
            // Who waits for a thread waits for the tokenizer too, and that is nobody's fault.
            let waiting = state.loaded;
            if waiting {
                let impatient: Vec<_> = state
                    .queue
                    .iter()
                    .filter(|(_, content)| state.jobs.get(content).is_some_and(|job| job.patience <= now))
                    .cloned()
                    .collect();
                for (id, content) in impatient {
                    state.queue.retain(|(queued, _)| *queued != id);
                    state.stats.refused += 1;
                    told |= state.settle(id, &content, Err(busy()), Keep::No);
                }
            }
            self.staff(&mut state);
            if told {
                drop(state);
                (self.notify)();
                state = self.lock();
                continue;
            }
            let due = state.running.iter().filter(|running| !running.abandoned).map(|running| running.due);
            let patience = state.queue.iter().filter_map(|(_, content)| state.jobs.get(content));
            let patience = patience.map(|job| job.patience).filter(|_| waiting);
            let wait = due.chain(patience).min().map(|at| at.saturating_duration_since(now));
            let wait = wait.unwrap_or(Duration::from_secs(3600));
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::backend::tests::accepts;
    use super::super::context::tests::context;
    use super::super::description::refusal;
    use super::*;

    fn key(request: u64) -> RequestKey {
        RequestKey { frontend: 0, request }
    }

    /// A compiler and what tells that it has something.
    fn compiler(
        settings: Settings,
        build: fn(&GrammarContext, &[u8], &Watch) -> Verdict,
    ) -> (Threads, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel();
        let notify = Box::new(move || {
            let _ = sender.send(());
        });
        let context = context(&[]);
        context.load().unwrap();
        (Threads::with_build(Arc::new(context), settings, notify, build), receiver)
    }

    fn wait(compiler: &mut Threads, told: &mpsc::Receiver<()>, count: usize) -> Vec<(u64, Verdict)> {
        let mut verdicts = Vec::new();
        while verdicts.len() < count {
            told.recv_timeout(Duration::from_secs(60)).expect("a verdict comes");
            compiler.collect(&mut verdicts);
        }
        verdicts.sort_by_key(|(key, _)| key.request);
        verdicts.into_iter().map(|(key, verdict)| (key.request, verdict)).collect()
    }

    fn message(verdict: &Verdict) -> String {
        verdict.as_ref().err().map(|refusal| refusal.message.clone()).unwrap_or_default()
    }

    /// Obeys what the description says.
    fn obedient(_: &GrammarContext, description: &[u8], watch: &Watch) -> Verdict {
        let text = String::from_utf8_lossy(description).into_owned();
        match &*text {
            "panic" => panic!("as told"),
            "wait" => loop {
                watch.check()?;
                std::thread::yield_now();
            },
            _ => Err(refusal(text)),
        }
    }

    #[test]
    fn the_same_is_compiled_once() {
        let (mut compiler, told) = compiler(Settings::default(), build);
        let good = br#"{"kind": "json_object"}"#;
        assert!(compiler.ask(key(1), good).is_none());
        let again = compiler.ask(key(2), good);
        let bad = compiler.ask(key(3), br#"{"kind": "regex", "pattern": "("}"#);
        let count = 1 + usize::from(again.is_none()) + usize::from(bad.is_none());
        let verdicts = wait(&mut compiler, &told, count);
        assert!(verdicts.iter().all(|(request, verdict)| verdict.is_ok() == (*request != 3)));
        let tokens = compiler.shared.context.load().unwrap();
        assert!(accepts(&tokens, verdicts[0].1.as_ref().unwrap(), r#"{"a": [1, 2]}"#));

        assert!(compiler.ask(key(4), good).is_some_and(|verdict| verdict.is_ok()), "from the cache");
        let refused = compiler.ask(key(5), br#"{"kind": "regex", "pattern": "("}"#).unwrap();
        assert!(message(&refused).contains("not valid"));
        let long = compiler.ask(key(6), &vec![b' '; 2 << 20]).unwrap();
        assert!(message(&long).contains("bytes"));
        let stats = compiler.stats();
        assert_eq!((stats.compiles, stats.entries, stats.hits + stats.misses), (2, 2, 5));
        assert_eq!(stats.compile_ns.count(), 2);
        assert!(stats.bytes > 0 && stats.bytes <= Settings::default().cache_bytes);
    }

    #[test]
    fn a_panic_is_a_refusal() {
        let (mut compiler, told) = compiler(Settings { threads: 1, ..Settings::default() }, obedient);
        assert!(compiler.ask(key(1), b"panic").is_none());
        assert!(message(&wait(&mut compiler, &told, 1)[0].1).contains("as told"));
        assert!(compiler.ask(key(2), b"fine").is_none());
        assert_eq!(message(&wait(&mut compiler, &told, 1)[0].1), "fine");
    }

    #[test]
    fn who_cancels_hears_nothing() {
        let (mut compiler, told) = compiler(Settings { threads: 1, ..Settings::default() }, obedient);
        assert!(compiler.ask(key(1), b"wait").is_none());
        assert!(compiler.ask(key(2), b"behind it").is_none());
        assert!(compiler.ask(key(3), b"never").is_none());
        compiler.cancel(key(3));
        // The only thread comes free because nobody waits for what it does.
        compiler.cancel(key(1));
        let verdicts = wait(&mut compiler, &told, 1);
        assert_eq!((verdicts[0].0, message(&verdicts[0].1)), (2, "behind it".to_owned()));
        compiler.cancel(key(2));
        compiler.cancel(key(99));
        let stats = compiler.stats();
        assert_eq!((stats.cancelled, stats.queued), (2, 0));
        assert!(compiler.shared.lock().asked.is_empty() && compiler.shared.lock().jobs.is_empty());
    }

    #[test]
    fn a_full_queue_refuses() {
        let (mut compiler, _told) =
            compiler(Settings { threads: 0, queue: 1, ..Settings::default() }, obedient);
        assert!(compiler.ask(key(1), b"a").is_none());
        assert!(compiler.ask(key(2), b"a").is_none(), "no place of its own");
        assert!(message(&compiler.ask(key(3), b"b").unwrap()).contains("too many"));
    }

    #[test]
    fn what_takes_too_long_is_refused_in_time() {
        /// Interrupts nothing until the last one has been asked for.
        fn stubborn(_: &GrammarContext, description: &[u8], watch: &Watch) -> Verdict {
            while description.starts_with(b"stuck") && !watch.is_cancelled() {
                std::thread::yield_now();
            }
            Err(refusal("done"))
        }
        let timeout = Duration::from_millis(20);
        let settings = Settings { threads: 1, timeout, strays: 1, ..Settings::default() };
        let (mut compiler, told) = compiler(settings, stubborn);
        assert!(compiler.ask(key(1), b"stuck").is_none());
        assert!(message(&wait(&mut compiler, &told, 1)[0].1).contains("longer than 0.02 s"));
        let known = compiler.ask(key(2), b"stuck").expect("it is not tried again at once");
        assert!(message(&known).contains("longer"));
        assert!(compiler.ask(key(3), b"quick").is_none());
        let quick = message(&wait(&mut compiler, &told, 1)[0].1);
        assert!(quick == "done" || quick.contains("too many"), "{quick}");
        assert_eq!(compiler.stats().timeouts, 1);
    }

    #[test]
    fn one_alone_has_its_limit() {
        let context = Arc::new(context(&[]));
        let verdict = compile_within(&context, br#"{"kind": "json_value"}"#, Duration::from_secs(60));
        assert_eq!(verdict.map(|compiled| compiled.backend()).ok(), Some("llguidance"));
        let verdict = compile_within(&context, br#"{"kind": "json_value"}"#, Duration::ZERO);
        assert!(message(&verdict).contains("longer"));
    }
}
