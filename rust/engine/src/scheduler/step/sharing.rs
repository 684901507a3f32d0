//! Prompts that begin alike are computed once, also where they come together.
//!
//! The full blocks of a prompt enter the prefix tree when the step that will compute them is planned, not when it has
//! come back. So the next request of the same plan finds them, and so does a prompt under way that has come less far:
//!
//! ```text
//!   a long prompt, two blocks a step for each        █ computes   · has from the tree
//!
//!   step N      A  ██            step N+1    A  ····██
//!               B  ··██                      B  ······██
//! ```
//!
//! Nobody waits for anybody: who finds a block takes it, who does not computes it. That is right because
//!
//! - steps run in the order of their plans, and in every layer of one step the keys and values of all its tokens are
//!   stored before any row attends (every runner promises that), so that whoever reads a block reads it computed;
//! - a step that is planned is launched with all its rows, also for sequences that end before it has come back;
//! - what a step fails to compute is *retracted*: the tree forgets what it and the steps after it were to compute, and
//!   who took blocks from the tree since then begins again, having lost nothing but time.
//!
//! Two sequences compute the same tokens only in a block that a chunk of one leaves unfinished, and from the block of a
//! prompt's last token on, behind which it samples. A tenant is charged for what its request did not find when it was
//! admitted. O(new blocks) a row; retracting is O(running + blocks that are forgotten).

use crate::kv_allocator::KvAllocator;
use crate::scheduler::planner::{Planner, StepRecord};

impl Planner {
    /// The step that is being planned: blocks taken from the tree now may be computed by it, or by steps before it.
    pub(in crate::scheduler) fn step_ahead(&self) -> u64 {
        self.counters.steps + 1
    }

    /// Tells the tree of the blocks that a prefill fills up in this step, with its tokens `planned..end`.
    pub(in crate::scheduler) fn publish(&mut self, kv: &mut KvAllocator, slot: u32, end: usize) {
        let at = slot as usize;
        let planned = self.table.progress[at].planned as usize;
        let (blocks, tokens) = (&self.table.blocks[at], &self.table.tokens[at]);
        self.published.extend_from_slice(&blocks[planned / self.block_size..end / self.block_size]);
        let salt = self.requests.get(self.table.request[at]).salt;
        if kv.insert(salt, &tokens[..end], blocks) > 0 {
            self.stuck = None; // the head of the queue may find more of its prompt now
        }
    }

    /// Lets a prefill go on behind the blocks that others have filled up meanwhile, or do in this step.
    pub(in crate::scheduler) fn catch_up(&mut self, kv: &mut KvAllocator, slot: u32) {
        let at = slot as usize;
        let salt = self.requests.get(self.table.request[at]).salt;
        let progress = &mut self.table.progress[at];
        let blocks = &mut self.table.blocks[at];
        let first = progress.planned as usize / self.block_size;
        // At least one token is left to compute, or there would be no logits to sample from.
        let most = (progress.known as usize - 1) / self.block_size;
        self.found.clear();
        let count = kv.match_further(salt, &self.table.tokens[at], &blocks[..first], most, &mut self.found);
        if count == 0 {
            return;
        }
        let own = first..first + count;
        kv.release(&blocks[own.clone()]);
        blocks[own.clone()].copy_from_slice(&self.found);
        let skipped = (own.end * self.block_size) as u32 - progress.planned;
        progress.planned += skipped;
        progress.committed += skipped;
        self.table.borrowed_in[at] = self.step_ahead();
        self.counters.prefix_hits += u64::from(skipped);
    }

    /// Undoes what others may have built on a step that failed, or a row of it: O(running + blocks).
    ///
    /// What it and the steps in flight after it published is forgotten; what was right of that is told again when its
    /// sequence goes on or ends. Whoever took blocks when that step was planned or later goes back to the queue.
    pub(in crate::scheduler) fn retract(&mut self, kv: &mut KvAllocator, step: &StepRecord) {
        kv.forget(&step.published);
        self.in_flight.iter().for_each(|later| kv.forget(&later.published));
        let borrowed = |slot: &u32| self.table.borrowed_in[*slot as usize] >= step.number;
        let slots: Vec<u32> = self.running.iter().map(|runner| runner.slot).filter(borrowed).collect();
        slots.into_iter().for_each(|slot| self.requeue(kv, slot));
    }
}
