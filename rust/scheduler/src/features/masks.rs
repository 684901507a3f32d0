//! Grammar masks of a step: bit `t % 32` of word `t / 32` says whether token `t` may come.
//!
//! ```text
//!  rows      a   b   c   d   e        masks that are known: the caller's thread
//!            └─┐ └───┼─┐ │ ┌─┘        all others: several threads
//!  masks       0     1 └─2─┘          each one once, with an index for each of the rows
//! ```
//!
//! A known mask is a look-up; O(vocabulary / 32) words for each that is written.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::thread_pool::ThreadPool;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_grammar::Grammar;
use pyengine_grammar::masks::Mask;

/// Threads that fill masks, if the machine has as many.
const MAX_THREADS: usize = 8;
/// So few rows are filled faster than a thread wakes up.
const ROWS_ALONE: usize = 2;
/// So few words are written faster.
const WORDS_ALONE: usize = 1 << 16;

/// The threads that fill masks beside the caller's.
pub(super) fn threads() -> Result<ThreadPool> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    ThreadPool::new(threads - 1, "pyengine-mask")
}

/// What may be sampled from one of a row's logits.
#[derive(Clone)]
pub(super) enum Allowed {
    Everything,
    /// The tokens of the mask that are among `only`, without the end tokens if `held` and anything else may come.
    Tokens {
        mask: Arc<Mask>,
        only: Option<Arc<Mask>>,
        held: bool,
    },
}

/// The masks of one row.
pub(super) struct Job<'a> {
    pub request: RequestId,
    pub grammar: Box<dyn Grammar>,
    // The tokens that the request allows at all.
    pub only: Option<Arc<Mask>>,
    // At these logits `min_tokens` forbids the end, if anything else may come.
    pub held: usize,
    pub drafts: &'a [u32],
    // The row's first of all logits; what may be sampled from them.
    pub first_logit: usize,
    pub allowed: Vec<Allowed>,
    // Time that it took, and why it failed.
    pub spent_ns: u64,
    pub complaint: Option<String>,
}

impl Job<'_> {
    /// Finds the masks. A grammar that panics ends its own request only: its masks allow everything.
    fn work(&mut self) {
        let begun = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| self.fill())).is_err() {
            self.complaint = Some("the grammar cannot be followed: its backend failed".into());
            self.allowed = vec![Allowed::Everything; self.drafts.len() + 1];
        }
        self.spent_ns = elapsed_ns(begun);
    }

    /// Finds a mask for each of the logits; the grammar is then where it was.
    fn fill(&mut self) {
        let mut advanced = 0;
        for at in 0..=self.drafts.len() {
            // Drafts are such as the grammar takes; what is sampled behind another is dropped.
            if at > 0 && advanced == at - 1 && self.grammar.advance(self.drafts[at - 1]) {
                advanced = at;
            }
            let only = self.only.clone();
            self.allowed.push(match advanced == at && !self.grammar.is_terminated() {
                true => Allowed::Tokens { mask: self.grammar.mask(), only, held: at < self.held },
                false => Allowed::Everything,
            });
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

/// Finds the masks of all jobs and returns them.
pub(super) fn find<'a>(jobs: Vec<Job<'a>>, threads: Option<&ThreadPool>) -> impl Iterator<Item = Job<'a>> {
    let jobs: Vec<_> = jobs.into_iter().map(Mutex::new).collect();
    let find = |row: usize| lock(&jobs[row]).work();
    match threads {
        Some(threads) if jobs.len() > ROWS_ALONE => threads.run(jobs.len(), &find),
        _ => (0..jobs.len()).for_each(find),
    }
    jobs.into_iter().map(|job| job.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The masks of a step, each once.
#[derive(Default)]
pub(super) struct Distinct {
    masks: Vec<(Arc<Mask>, Option<Arc<Mask>>, bool)>,
    known: FxHashMap<(usize, Option<usize>, bool), i32>,
}

impl Distinct {
    /// The index of a mask; -1 where everything may come.
    pub fn index(&mut self, allowed: Allowed) -> i32 {
        let Allowed::Tokens { mask, only, held } = allowed else { return -1 };
        let address = |mask: &Arc<Mask>| Arc::as_ptr(mask).addr();
        match self.known.entry((address(&mask), only.as_ref().map(address), held)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.masks.push((mask, only, held));
                *new.insert(self.masks.len() as i32 - 1)
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.masks.len()
    }

    /// Writes them, each `words` long, one after the other.
    pub fn write(&self, out: &mut [u32], words: usize, end_tokens: &[u32], threads: Option<&ThreadPool>) {
        let rows: Vec<_> = out.chunks_mut(words).take(self.masks.len()).map(Mutex::new).collect();
        let write = |at: usize| {
            let ((mask, only, held), mut row) = (&self.masks[at], lock(&rows[at]));
            mask.write(&mut row);
            if let Some(only) = only {
                let mut among = vec![0; words];
                only.write(&mut among);
                row.iter_mut().zip(among).for_each(|(word, among)| *word &= among);
            }
            if *held {
                go_on(&mut row, end_tokens);
            }
        };
        match threads {
            Some(threads) if rows.len() * words > WORDS_ALONE => threads.run(rows.len(), &write),
            _ => (0..rows.len()).for_each(write),
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.masks.clear();
        self.known.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since then.
pub(super) fn elapsed_ns(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
