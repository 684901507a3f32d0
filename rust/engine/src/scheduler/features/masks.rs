//! Grammar masks of a step, filled by several threads: bit `t % 32` of word `t / 32` says whether token `t` may come.
//!
//! O(vocabulary / 32) words a mask at least, and what the grammar takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::thread_pool::ThreadPool;
use crate::error::Result;
use crate::grammar::Grammar;
use crate::scheduler::step::sequence_table::RequestId;

/// Threads that fill masks, if the machine has as many.
const MAX_THREADS: usize = 8;
/// So few rows are filled faster than a thread wakes up.
const ROWS_ALONE: usize = 2;

/// The threads that fill masks beside the caller's.
pub(super) fn threads() -> Result<ThreadPool> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    ThreadPool::new(threads - 1, "pyengine-mask")
}

/// The masks of one row.
pub(super) struct Job<'a> {
    pub request: RequestId,
    pub grammar: Box<dyn Grammar>,
    // The only token that may come, where an answer is being closed.
    pub only: Option<u32>,
    // At so many of the logits `min_tokens` forbids the end, if anything else may come.
    pub held: usize,
    pub end_tokens: &'a [u32],
    pub drafts: &'a [u32],
    pub masks: &'a mut [u32],
    pub words: usize,
    // Time that it took, and why it failed.
    pub spent_ns: u64,
    pub complaint: Option<String>,
}

impl Job<'_> {
    /// Fills the masks. A grammar that panics ends its own request only: its masks allow everything.
    fn work(&mut self) {
        let begun = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| self.fill())).is_err() {
            self.masks.fill(u32::MAX);
            self.complaint = Some("the grammar cannot be followed: its backend failed".into());
        }
        self.spent_ns = elapsed_ns(begun);
    }

    /// Fills a mask for each of the logits; the grammar is then where it was.
    fn fill(&mut self) {
        if let Some(only) = self.only {
            self.masks.fill(0);
            self.masks[only as usize / 32] |= 1 << (only % 32);
            return;
        }
        let mut advanced = 0;
        for (at, mask) in self.masks.chunks_mut(self.words).enumerate() {
            // Drafts are such as the grammar takes; what is sampled behind another is dropped.
            if at > 0 && advanced == at - 1 && self.grammar.advance(self.drafts[at - 1]) {
                advanced = at;
            }
            match advanced == at && !self.grammar.is_terminated() {
                true => self.grammar.fill_mask(mask),
                false => mask.fill(u32::MAX),
            }
            if at < self.held {
                go_on(mask, self.end_tokens);
            }
        }
        self.grammar.roll_back(advanced);
    }
}

/// Forbids the end tokens, unless nothing else may come.
fn go_on(mask: &mut [u32], end_tokens: &[u32]) {
    let allowed = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    let ends: Vec<u32> = end_tokens.iter().copied().filter(|token| allowed(mask, *token)).collect();
    ends.iter().for_each(|token| mask[*token as usize / 32] &= !(1 << (token % 32)));
    if mask.iter().all(|word| *word == 0) {
        ends.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
    }
}

/// Fills the masks of all jobs and returns them.
pub(super) fn fill<'a>(
    jobs: Vec<Mutex<Job<'a>>>,
    threads: Option<&ThreadPool>,
) -> impl Iterator<Item = Job<'a>> {
    let fill = |row: usize| lock(&jobs[row]).work();
    match threads {
        Some(threads) if jobs.len() > ROWS_ALONE => threads.run(jobs.len(), &fill),
        _ => (0..jobs.len()).for_each(fill),
    }
    jobs.into_iter().map(|job| job.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since then.
pub(super) fn elapsed_ns(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
