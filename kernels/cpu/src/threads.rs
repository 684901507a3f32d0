//! A bounded set of threads that share out numbered pieces of work.
//!
//! The caller works too, so that a pool of one thread costs nothing and small work never waits for a
//! sleeping thread. Pieces are claimed from one counter: O(1) per piece, no allocation but the scope's.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Work of fewer operations than this is done by the caller alone: waking a thread costs as much.
const WORTH_SHARING: usize = 1 << 16;

/// The threads of one model runner.
#[derive(Debug)]
pub struct Threads {
    helpers: Option<ThreadPool>,
    count: usize,
}

impl Threads {
    /// `count` threads, the caller's among them; 0 is taken as 1.
    ///
    /// # Errors
    /// The operating system gives no more threads.
    pub fn new(count: usize) -> Result<Self, ThreadPoolBuildError> {
        let count = count.max(1);
        let helpers = (count > 1)
            .then(|| {
                ThreadPoolBuilder::new()
                    .num_threads(count - 1)
                    .thread_name(|index| format!("pyengine-cpu-{index}"))
                    .build()
            })
            .transpose()?;
        Ok(Self { helpers, count })
    }

    /// How many threads there are, the caller's among them.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work` once with every number below `pieces`, on any thread and in any order, and
    /// returns when all are done. `operations` is roughly how much work that is in all.
    ///
    /// A panic in `work` reaches the caller after the other pieces have ended.
    pub fn share<F: Fn(usize) + Sync>(&self, pieces: usize, operations: usize, work: F) {
        let helpers = match &self.helpers {
            Some(helpers) if pieces > 1 && operations >= WORTH_SHARING => helpers,
            _ => return (0..pieces).for_each(work),
        };
        let next = AtomicUsize::new(0);
        let claim = || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= pieces {
                    return;
                }
                work(piece);
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 1..self.count.min(pieces) {
                scope.spawn(|_| claim());
            }
            claim();
        });
    }
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
    #[should_panic(expected = "outside of its slice")]
    fn a_part_stays_inside() {
        let mut values = [0u8; 4];
        // SAFETY: the only part there is.
        unsafe { Shared::new(&mut values).part(2, usize::MAX) };
    }
}
