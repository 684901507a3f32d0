//! A bounded set of threads that share out numbered pieces of work.
//!
//! ```text
//!  caller   publish ─ wake who sleeps ─ claim, claim, ... ─ close ─ wait for those that joined ─┐
//!  helper   spins ─ joins ─ claim, claim, ... ─ leaves ─ spins for SPIN ─ sleeps                ▼
//! ```
//!
//! A step is dozens of short works with a little between them, so a helper spins for the next one before it sleeps:
//! it then begins within a microsecond. The caller works too and waits for no helper that has not joined: a pool of
//! one thread costs nothing, and a helper whose processor is busy with something else delays no other. Between steps
//! helpers sleep. Pieces are claimed from one counter: O(1) per piece, no allocation.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{hint, io, thread};

use crate::processors::Processors;

/// Work of fewer operations than this is done by the caller alone: sharing costs as much.
const WORTH_SHARING: usize = 1 << 16;

/// How long a helper spins for the next work: longer than what lies between two works of a step.
const SPIN: Duration = Duration::from_micros(50);

/// In a pool's state: whether helpers may join the work, ...
const OPEN: u64 = 1 << 15;
/// ... how many have, and above both the number of the work.
const JOINED: u64 = OPEN - 1;
const NUMBER: u64 = OPEN << 1;

/// The threads of one model runner.
#[derive(Debug)]
pub struct Threads {
    pool: Arc<Pool>,
    helpers: Vec<JoinHandle<()>>,
    processors: Processors,
    /// Held by the caller whose work this is; another's is done without helpers.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Pool {
    /// Number of the last work, whether it is open, and how many helpers are at it.
    state: AtomicU64,
    /// The open work. Written while it is closed and no helper is at it.
    work: UnsafeCell<Work>,
    next: AtomicUsize,
    sleeping: Vec<AtomicBool>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A closure of a caller that waits, and how many pieces there are.
#[derive(Debug, Clone, Copy)]
struct Work {
    call: unsafe fn(*const (), usize),
    closure: *const (),
    pieces: usize,
}

// SAFETY: `work` is written by the caller that holds the turn, while no helper has joined; helpers read it between
// joining and leaving. Its closure is `Sync` and outlives that time.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

impl Threads {
    /// `count` threads, the caller's among them; 0 is taken as 1.
    ///
    /// # Errors
    /// The operating system gives no more threads.
    pub fn new(count: usize) -> io::Result<Self> {
        let count = count.max(1) - 1;
        let pool = Arc::new(Pool {
            state: AtomicU64::new(0),
            work: UnsafeCell::new(Work { call: |_, _| (), closure: std::ptr::null(), pieces: 0 }),
            next: AtomicUsize::new(0),
            sleeping: (0..count).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let processors = Processors::new();
        let mut threads = Self { pool, helpers: Vec::with_capacity(count), processors, turn: Mutex::new(()) };
        for index in 0..count {
            let pool = threads.pool.clone();
            let name = format!("pyengine-cpu-{index}");
            threads.helpers.push(Builder::new().name(name).spawn(move || pool.help(index))?);
        }
        Ok(threads)
    }

    /// How many threads there are, the caller's among them.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work` once with every number below `pieces`, on any thread and in any order, and
    /// returns when all are done. `operations` is roughly how much work that is in all.
    ///
    /// A panic in `work` reaches the caller after the other threads have ended.
    pub fn share<F: Fn(usize) + Sync>(&self, pieces: usize, operations: usize, work: F) {
        let alone = self.helpers.is_empty() || pieces <= 1 || operations < WORTH_SHARING;
        let turn = if alone { None } else { self.turn.try_lock().ok() };
        let Some(turn) = turn else { return (0..pieces).for_each(work) };
        unsafe fn call<F: Fn(usize)>(closure: *const (), piece: usize) {
            // SAFETY: the closure that the caller of `share` lent.
            unsafe { (*closure.cast::<F>())(piece) }
        }
        self.processors.leave_mine_to_me(&self.helpers);
        let pool = &*self.pool;
        let shared = Work { call: call::<F>, closure: (&raw const work).cast(), pieces };
        // SAFETY: this caller has the turn, and the last work was closed and left by all.
        unsafe { *pool.work.get() = shared };
        pool.next.store(0, Ordering::Relaxed);
        let number = (pool.state.load(Ordering::Relaxed) & !(NUMBER - 1)).wrapping_add(NUMBER);
        pool.state.store(number | OPEN, Ordering::SeqCst);
        for (helper, sleeping) in self.helpers.iter().zip(&pool.sleeping).take(pieces - 1) {
            if sleeping.swap(false, Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
        let result = pool.claim(shared);
        pool.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while pool.state.load(Ordering::Acquire) & JOINED != 0 {
            // A helper may have lost its processor in the middle of a piece.
            spins += 1;
            if spins < 10_000 { hint::spin_loop() } else { thread::yield_now() }
        }
        let panic = pool.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(panic) = result.err().or(panic) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper's panics were caught.
            let _ = helper.join();
        }
    }
}

impl Pool {
    /// Claims pieces until none is left; after a panic none is.
    fn claim(&self, work: Work) -> thread::Result<()> {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let piece = self.next.fetch_add(1, Ordering::Relaxed);
                if piece >= work.pieces {
                    return;
                }
                // SAFETY: the closure lives until the caller has closed the work and all have left it.
                unsafe { (work.call)(work.closure, piece) };
            }
        }));
        if result.is_err() {
            self.next.store(work.pieces, Ordering::Relaxed);
        }
        result
    }

    /// The life of a helper.
    fn help(&self, index: usize) {
        let mut done = 0;
        while let Some(number) = self.join(index, done) {
            done = number;
            // SAFETY: this helper has joined the work, so no thread writes it.
            let work = unsafe { *self.work.get() };
            if let Err(panic) = self.claim(work) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a work other than `done` and joins it; `None` when the pool ends.
    fn join(&self, index: usize, done: u64) -> Option<u64> {
        let mut since = Instant::now();
        loop {
            for _ in 0..64 {
                let state = self.state.load(Ordering::SeqCst);
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                if is_new(state, done) {
                    let joined =
                        self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                    if joined.is_ok() {
                        return Some(state & !(NUMBER - 1));
                    }
                }
                hint::spin_loop();
            }
            if since.elapsed() >= SPIN {
                self.sleeping[index].store(true, Ordering::SeqCst);
                // A work that was published before the store woke nobody.
                if !is_new(self.state.load(Ordering::SeqCst), done) && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.sleeping[index].store(false, Ordering::SeqCst);
                since = Instant::now();
            }
        }
    }
}

/// Whether a pool of this state has an open work other than `done`.
fn is_new(state: u64, done: u64) -> bool {
    state & OPEN != 0 && state & !(NUMBER - 1) != done
}

/// A mutable slice of which threads write disjoint parts.
#[derive(Debug)]
pub struct Shared<'a, T> {
    start: *mut T,
    length: usize,
    _slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it gives out nothing but `&mut [T]` of parts that its users promise to be disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above; it stands for the `&mut [T]` that it was made from.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares out `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), _slice: std::marker::PhantomData }
    }

    /// Shares out the `length` elements from `start` on, of which others may have parts that this one gives to none.
    ///
    /// # Safety
    /// They are one piece of memory, which lives as long as this does; parts that are asked for are nobody else's.
    pub unsafe fn of_memory(start: *mut T, length: usize) -> Self {
        Self { start, length, _slice: std::marker::PhantomData }
    }

    /// `length` elements from `start` on.
    ///
    /// # Panics
    /// The part is not inside the slice.
    ///
    /// # Safety
    /// While the part lives, no other part that overlaps it may.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, length: usize) -> &mut [T] {
        assert!(start <= self.length && length <= self.length - start, "a part outside of its slice");
        // SAFETY: inside the slice by the check above, and no other thread's, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), length) }
    }

    /// `length` elements from `start` on, to read; several threads may read the same ones.
    ///
    /// # Panics
    /// They are not inside the slice.
    ///
    /// # Safety
    /// While they live, no part that overlaps them may.
    pub unsafe fn view(&self, start: usize, length: usize) -> &[T]
    where
        T: Sync,
    {
        assert!(start <= self.length && length <= self.length - start, "a part outside of its slice");
        // SAFETY: inside the slice by the check above, and no thread writes it, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.add(start), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once() {
        for count in [0, 1, 2, 5] {
            let threads = Threads::new(count).unwrap();
            for operations in [0, WORTH_SHARING] {
                let done: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
                threads.share(done.len(), operations, |piece| {
                    done[piece].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let threads = Threads::new(3).unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            threads.share(10, WORTH_SHARING, |piece| assert_ne!(piece, 7, "piece seven"));
        }));
        assert!(result.is_err());
        threads.share(10, WORTH_SHARING, |_| ());
    }

    #[test]
    fn works_follow_each_other_and_may_come_at_once() {
        let threads = Threads::new(3).unwrap();
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let mine = AtomicUsize::new(0);
                        threads.share(5, WORTH_SHARING, |_| {
                            mine.fetch_add(1, Ordering::Relaxed);
                        });
                        done.fetch_add(mine.into_inner(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 3 * 2_000 * 5);
    }

    #[test]
    fn helpers_that_sleep_are_woken() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..3 {
            while !threads.pool.sleeping[0].load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let (caller, both) = (thread::current().id(), std::sync::Barrier::new(2));
            let helped = AtomicBool::new(false);
            threads.share(2, WORTH_SHARING, |_| {
                both.wait();
                if thread::current().id() != caller {
                    helped.store(true, Ordering::Relaxed);
                }
            });
            assert!(helped.into_inner());
        }
    }

    #[test]
    #[should_panic(expected = "outside of its slice")]
    fn a_part_stays_inside() {
        let mut values = [0u8; 4];
        // SAFETY: the only part there is.
        unsafe { Shared::new(&mut values).part(2, usize::MAX) };
    }
}
