//! Threads that share numbered pieces of work with their caller.
//!
//! ```text
//!  run     caller   ├─ claims pieces ──────────────┤ waits for those under way
//!          workers      ├ wake up ─ claim pieces ─────┤
//! ```
//!
//! A run never waits for a worker that is not awake yet: where other programs have the cores, the caller does all
//! pieces itself. (A scope of a usual thread pool ends only when all of its tasks have begun, even if nothing is left
//! for them.) O(1) a piece; one allocation a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use pyengine_base::error::{Error, Result};

/// Workers that wait for a run. They end when it is dropped.
pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    workers: usize,
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
    /// A pool of `workers` workers, which may be none.
    pub fn new(workers: usize, name: &str) -> Result<Self> {
        let state = Mutex::new(State { batch: None, closed: false });
        let pool = Self { shared: Arc::new(Shared { state, work: Condvar::new() }), workers };
        for number in 0..workers {
            let shared = pool.shared.clone();
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || shared.serve()).map_err(|error| Error::System(error.to_string()))?;
        }
        Ok(pool)
    }

    /// Calls `work` once with each number below `pieces`, on any thread and in any order; returns when all are done.
    ///
    /// # Panics
    /// `work` panicked.
    pub fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.workers == 0 || pieces < 2 {
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
        for _ in 0..self.workers.min(pieces - 1) {
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

    /// A worker's loop: claims pieces of each batch until the pool is dropped.
    fn serve(&self) {
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
        for workers in [0, 1, 3] {
            let pool = ThreadPool::new(workers, "test").unwrap();
            for pieces in [0, 1, 2, 7, 500] {
                let mut done: Vec<Mutex<usize>> = (0..pieces).map(Mutex::new).collect();
                pool.run(pieces, &|piece| *done[piece].lock().unwrap() += 1000);
                let done: Vec<usize> = done.iter_mut().map(|value| *value.get_mut().unwrap()).collect();
                assert_eq!(done, (1000..1000 + pieces).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn workers_work_beside_the_caller() {
        let pool = ThreadPool::new(1, "test").unwrap();
        let barrier = std::sync::Barrier::new(2);
        // Neither piece ends before the other has begun.
        pool.run(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_when_all_is_done() {
        let pool = ThreadPool::new(2, "test").unwrap();
        let done = AtomicUsize::new(0);
        let work = |piece: usize| {
            assert_ne!(piece, 3, "piece three");
            done.fetch_add(1, Ordering::Relaxed);
        };
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(9, &work))).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 8);
        pool.run(3, &work);
        assert_eq!(done.load(Ordering::Relaxed), 11);
    }
}
