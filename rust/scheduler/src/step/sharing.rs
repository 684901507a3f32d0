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
//! No sequence waits for another: one that finds a block takes it, one that does not computes it. That is right because
//!
//! - steps run in the order of their plans, and in every layer of one step the keys and values of all its tokens are
//!   stored before any row attends (every runner promises that), so that a block is computed before it is read;
//! - a step that is planned is launched with all its rows, also for sequences that end before it has come back;
//! - what a step fails to compute is *retracted*: the tree forgets what it and the steps after it were to compute, and
//!   sequences that took blocks from the tree since then begin again, having lost nothing but time.
//!
//! Two sequences compute the same tokens only in a block that a chunk of one leaves unfinished, and from the block of a
//! prompt's last token on, behind which it samples. A tenant is charged for what its request did not find when it was
//! admitted. O(new blocks) a row; retracting is O(running + blocks that are forgotten).

use super::Steps;
use super::rows::StepRecord;
use crate::lifecycle::Lifecycle;
use pyengine_kv_allocator::KvAllocator;

impl Steps {
    /// The step that is being planned: blocks taken from the tree now may be computed by it, or by steps before it.
    pub(super) fn step_ahead(&self) -> u64 {
        self.number + 1
    }

    /// Tells the tree of the blocks that a prefill fills up in this step, with its tokens `planned..end`. True if the
    /// tree did not know all of them.
    pub(super) fn publish(&mut self, kv: &mut KvAllocator, slot: u32, salt: u64, end: usize) -> bool {
        let at = slot as usize;
        let planned = self.table.progress[at].planned as usize;
        let (blocks, tokens) = (self.table.held[at].blocks(), &self.table.tokens[at]);
        self.published.extend_from_slice(&blocks[planned / self.block_size..end / self.block_size]);
        kv.insert(salt, &tokens[..end], blocks) > 0
    }

    /// Lets a prefill go on behind the blocks that others have filled up meanwhile, or do in this step. Returns how many
    /// tokens it need not compute any more.
    pub(super) fn catch_up(&mut self, kv: &mut KvAllocator, slot: u32, salt: u64) -> u32 {
        let at = slot as usize;
        let progress = &mut self.table.progress[at];
        let first = progress.planned as usize / self.block_size;
        // At least one token is left to compute, or there would be no logits to sample from.
        let most = (progress.known as usize - 1) / self.block_size;
        let (held, tokens) = (&mut self.table.held[at], &self.table.tokens[at]);
        let count = kv.go_on(held, salt, tokens, first, most, &mut self.found);
        if count == 0 {
            return 0;
        }
        let skipped = ((first + count) * self.block_size) as u32 - progress.planned;
        progress.planned += skipped;
        progress.committed += skipped;
        self.table.borrowed_in[at] = self.step_ahead();
        self.states.hits += u64::from(self.states.exist());
        skipped
    }

    /// Makes the tree forget what a step and those in flight after it published; returns the sequences that took blocks
    /// from the tree when it was planned or later. Right blocks enter the tree again when their sequence goes on or ends.
    fn unpublish(&self, kv: &mut KvAllocator, step: &StepRecord) -> Vec<u32> {
        step.forget(kv);
        self.in_flight.iter().for_each(|later| later.forget(kv));
        let borrowed = |slot: &u32| self.table.borrowed_in[*slot as usize] >= step.number;
        self.running.iter().map(|runner| runner.slot).filter(borrowed).collect()
    }
    /// Undoes what others may have built on a step that failed, or a row of it: O(running + blocks).
    pub(super) fn retract(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, step: &StepRecord) {
        self.unpublish(kv, step).into_iter().for_each(|slot| lifecycle.requeue(kv, self, slot));
    }
}
