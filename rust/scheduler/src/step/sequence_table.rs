//! The sequence table: a structure of arrays over the sequences that run.
//!
//! An index of the table is what the device knows a sequence by (`last_token[index]`). Steps in flight name
//! rows by index *and* generation: the generation grows whenever an index is released, so a row that outlived
//! its sequence is told apart from the index's next owner in O(1), and an index may be reused at once (the
//! device runs steps in order, so the old row has written `last_token` before the new owner's first row does).
//!
//! ```text
//!  tokens      0 ........ committed ........ planned ........ known ........ known + pending ≤ limit
//!              KV computed,  KV computed by   no KV yet        chosen by steps in flight,
//!              or matched    rows in flight                    on the device only
//! ```
//!
//! Drafts in flight count as planned until their step is committed; then those that were wrong do not.
//!
//! Acquire and release are O(1); block tables keep their capacity from owner to owner.

use pyengine_kernels_cpu::sampler::SamplingRow;

use pyengine_kv_allocator::Holding;

/// Names a request inside the planner.
pub type RequestId = u32;
/// Names a tenant inside the planner.
pub type TenantId = u32;

/// How far a sequence has come, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens whose value the host knows.
    pub known: u32,
    /// Tokens after those, sampled by steps in flight.
    pub pending: u32,
    /// The oldest of the tokens that steps in flight sample are known already: this many are dropped.
    pub settled: u32,
    /// Tokens whose KV is computed once all steps in flight have run.
    pub planned: u32,
    /// The same without what its own rows in flight compute; of what it took from the tree, others' may.
    pub committed: u32,
    /// The sequence ends when it has this many tokens.
    pub limit: u32,
    /// Tokens known at admission: up to here it is prefill.
    pub prefill: u32,
    /// Draft tokens in steps in flight, beyond those above.
    pub drafted: u32,
}

impl Progress {
    /// Tokens once all steps in flight have run, if all drafts in them are wrong.
    pub fn total(&self) -> u32 {
        self.known + self.pending
    }

    /// The same if all of them are right.
    pub fn reach(&self) -> u32 {
        self.total() + self.drafted
    }

    /// Tokens that a step could compute now. 0 at a predictable end, even if its last token is still in flight or only
    /// drafts may come so far; and 0 while drafts are in flight, as it is not known how many of them are right.
    pub fn remaining(&self) -> u32 {
        if self.drafted == 0 && self.reach() < self.limit { self.reach() - self.planned } else { 0 }
    }

    /// Whether it goes on by its newest token, and by those before it that were not sampled.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 || (self.remaining() > 0 && self.planned >= self.prefill)
    }

    /// Whether it has more than that to compute.
    pub fn prefills(&self) -> bool {
        self.remaining() > 0 && !self.decodes()
    }
}

/// The running sequences; all vectors are indexed by table index.
pub struct SequenceTable {
    /// How far each has come.
    pub progress: Vec<Progress>,
    /// Known tokens.
    pub tokens: Vec<Vec<u32>>,
    /// What it holds of the cache.
    pub held: Vec<Holding>,
    /// How its tokens are chosen.
    pub sampling: Vec<SamplingRow>,
    /// Whether tokens follow its prompt; of one without, the last row is its end.
    pub samples: Vec<bool>,
    /// The request behind the sequence.
    pub request: Vec<RequestId>,
    /// The tenant that is charged for its tokens.
    pub tenant: Vec<TenantId>,
    /// Its place among the running, by [`running_order`](crate::queue::policy::running_order).
    pub order: Vec<(i32, u64)>,
    /// The last step with whose plan it took blocks from the prefix tree, 0 if none: some may be computed by that step.
    pub borrowed_in: Vec<u64>,
    /// The row of the table of angles where its positions begin, see [`rotation`](crate::rotation).
    pub rotation: Vec<u32>,
    generation: Vec<u32>,
    live: Vec<bool>,
    free: Vec<u32>,
}

impl SequenceTable {
    /// A table of `capacity` indices.
    pub fn new(capacity: usize) -> Self {
        Self {
            progress: vec![Progress::default(); capacity],
            tokens: vec![Vec::new(); capacity],
            held: vec![Holding::default(); capacity],
            sampling: vec![SamplingRow::NEUTRAL; capacity],
            samples: vec![true; capacity],
            request: vec![0; capacity],
            tenant: vec![0; capacity],
            order: vec![(0, 0); capacity],
            borrowed_in: vec![0; capacity],
            rotation: vec![0; capacity],
            generation: vec![0; capacity],
            live: vec![false; capacity],
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// A free index, if there is one.
    pub fn acquire(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.live[index as usize] = true;
        Some(index)
    }

    /// Releases an index; rows in flight that name it are void from now on. Its blocks must be gone.
    pub fn release(&mut self, index: u32) {
        let at = index as usize;
        debug_assert!(self.live[at] && self.held[at].blocks().is_empty());
        self.live[at] = false;
        self.generation[at] = self.generation[at].wrapping_add(1);
        self.tokens[at].clear();
        self.free.push(index);
    }

    /// The generation that rows of this index carry now.
    pub fn generation(&self, index: u32) -> u32 {
        self.generation[index as usize]
    }

    /// Whether the owner that a row was planned for still owns the index.
    pub fn is_current(&self, index: u32, generation: u32) -> bool {
        self.live[index as usize] && self.generation[index as usize] == generation
    }

    /// How many indices are owned.
    pub fn owned(&self) -> usize {
        self.live.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_does_not_outlive_its_owner() {
        let mut table = SequenceTable::new(1);
        let index = table.acquire().unwrap();
        let generation = table.generation(index);
        assert!(table.is_current(index, generation));
        assert_eq!(table.acquire(), None);
        table.release(index);
        assert!(!table.is_current(index, generation));
        assert_eq!(table.acquire(), Some(index));
        assert!(!table.is_current(index, generation));
    }

    #[test]
    fn nothing_remains_at_a_predictable_end() {
        let mut progress = Progress { known: 9, planned: 8, limit: 10, ..Progress::default() };
        assert_eq!(progress.remaining(), 1);
        progress.planned = 9;
        progress.pending = 1;
        assert_eq!(progress.remaining(), 0);
    }
}
