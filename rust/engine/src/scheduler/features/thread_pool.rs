//! Threads that share out numbered pieces of work with whoever calls them.
//!
//! ```text
//!  run     caller   ├─ claims pieces ──────────────┤ waits for those that others are at
//!          helpers      ├ wake up ─ claim pieces ─────┤
//! ```
//!
//! Nobody waits for a helper that is not awake yet: where other programs have the cores, the caller does it all, as if
//! it were alone. (A scope of a thread pool ends when all of its tasks have begun, be there anything left for them.)
//! O(1) a piece; one allocation a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use crate::error::{Error, Result};

/// Helpers that wait for work. They end when it is dropped.
pub(in crate::scheduler) struct ThreadPool {
    shared: Arc<Shared>,
    helpers: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    batch: Option<Arc<Batch>>,
    closed: bool,
}

/// One run.
struct Batch {
    work: Work,
    pieces: usize,
    next: AtomicUsize,
    left: AtomicUsize,
    panicked: AtomicBool,
    caller: Thread,
}

/// The caller's closure, which lives as long as pieces are left.
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: it is called as `&(dyn Fn + Sync)`, which may be shared, and only while that lives; see `Batch::claim`.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl ThreadPool {
    /// So many helpers, which may be none.
    pub fn new(helpers: usize, name: &str) -> Result<Self> {
        let state = Mutex::new(State { batch: None, closed: false });
        let crew = Self { shared: Arc::new(Shared { state, work: Condvar::new() }), helpers };
        for number in 0..helpers {
            let shared = crew.shared.clone();
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || shared.help()).map_err(|error| Error::System(error.to_string()))?;
        }
        Ok(crew)
    }

    /// Calls `work` once with each number below `pieces`, on any thread and in any order; returns when all are done.
    ///
    /// # Panics
    /// `work` panicked.
    pub fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.helpers == 0 || pieces < 2 {
            return (0..pieces).for_each(work);
        }
        // SAFETY: only the lifetime changes, which `claim` keeps to.
        let work =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        let batch = Arc::new(Batch {
            work: Work(work),
            pieces,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(pieces),
            panicked: AtomicBool::new(false),
            caller: thread::current(),
        });
        self.shared.lock().batch = Some(batch.clone());
        for _ in 0..self.helpers.min(pieces - 1) {
            self.shared.work.notify_one();
        }
        batch.claim();
        while batch.left.load(Ordering::Acquire) > 0 {
            thread::park();
        }
        self.shared.lock().batch = None;
        assert!(!batch.panicked.load(Ordering::Relaxed), "a piece of work panicked");
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A helper's life.
    fn help(&self) {
        let mut state = self.lock();
        while !state.closed {
            match state.batch.clone().filter(|batch| batch.next.load(Ordering::Relaxed) < batch.pieces) {
                Some(batch) => {
                    drop(state);
                    batch.claim();
                    state = self.lock();
                }
                None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Batch {
    /// Does pieces until none is left to claim.
    fn claim(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            // SAFETY: this piece is one of those left, and `run` does not return, and its closure lives, until none is.
            let work = unsafe { &*self.work.0 };
            if catch_unwind(AssertUnwindSafe(|| work(piece))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.caller.unpark();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_before_it_returns() {
        for helpers in [0, 1, 3] {
            let crew = ThreadPool::new(helpers, "test").unwrap();
            for pieces in [0, 1, 2, 7, 500] {
                let mut done: Vec<Mutex<usize>> = (0..pieces).map(Mutex::new).collect();
                crew.run(pieces, &|piece| *done[piece].lock().unwrap() += 1000);
                let done: Vec<usize> = done.iter_mut().map(|value| *value.get_mut().unwrap()).collect();
                assert_eq!(done, (1000..1000 + pieces).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn helpers_help() {
        let crew = ThreadPool::new(1, "test").unwrap();
        let barrier = std::sync::Barrier::new(2);
        // Neither piece ends before the other has begun.
        crew.run(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_when_all_is_done() {
        let crew = ThreadPool::new(2, "test").unwrap();
        let done = AtomicUsize::new(0);
        let work = |piece: usize| {
            assert_ne!(piece, 3, "piece three");
            done.fetch_add(1, Ordering::Relaxed);
        };
        assert!(catch_unwind(AssertUnwindSafe(|| crew.run(9, &work))).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 8);
        crew.run(3, &work);
        assert_eq!(done.load(Ordering::Relaxed), 11);
    }
}
