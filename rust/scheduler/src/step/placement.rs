//! Places of sequences: a slot of the sequence table with the blocks of all known tokens, taken and given up.
//!
//! O(blocks of the sequence + log running); expected growth O(running).

use std::sync::Arc;

use pyengine_kernels_cpu::sampler::SamplingRow;

use super::Steps;
use super::rows::Runner;
use super::sequence_table::{Progress, RequestId, TenantId};
use crate::queue::policy;
use crate::queue::requests::Request;
use pyengine_kv_allocator::KvAllocator;
use pyengine_telemetry::{Stage, Timeline};

/// A slot with its blocks; the tree had `computed` tokens of the sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub slot: u32,
    pub computed: u32,
}

/// A sequence that enters the table.
pub(crate) struct Entry {
    pub request: RequestId,
    pub prompt_length: u32,
    pub tenant: TenantId,
    pub sampling: SamplingRow,
    pub samples: bool,
    pub order: (i32, u64),
    pub tokens: Vec<u32>,
    /// It took blocks from the prefix tree.
    pub borrows: bool,
    /// The row of the table of angles where its positions begin.
    pub rotation: u32,
    /// What its answer is expected to repeat in parts.
    pub prediction: Option<Arc<[u32]>>,
}

impl Steps {
    /// Pages that the running sequences will want for what they have not computed and their next `horizon` tokens.
    pub fn expected_growth(&self, kv: &KvAllocator, horizon: u32) -> usize {
        self.running.iter().map(|runner| self.growth(kv, runner.slot, horizon)).sum()
    }

    /// The same of one sequence.
    pub fn growth(&self, kv: &KvAllocator, slot: u32, horizon: u32) -> usize {
        let at = slot as usize;
        kv.demand(&self.table.held[at], policy::expected_tokens(&self.table.progress[at], horizon))
    }

    /// A place for a request, if its blocks can be had beside the `expected` growth of the others.
    pub fn place(
        &mut self,
        kv: &mut KvAllocator,
        request: &Request,
        expected: usize,
        horizon: u32,
        timeline: &mut Timeline,
    ) -> Option<Placement> {
        let known = request.tokens.len();
        let slot = self.table.acquire()?;
        let at = slot as usize;
        let held = &mut self.table.held[at];
        // At least one token is left to compute, or there would be no logits to sample from.
        let most = (known - 1).min(request.reusable as usize) / self.block_size;
        let cached = kv.begin(held, request.salt, &request.tokens, most);
        let known_blocks = match self.states.exist() {
            true => kv.known_prefix(request.salt, &request.tokens, (known - 1) / self.block_size),
            false => cached,
        };
        timeline.end_span(Stage::Match);
        let (blocks, needed) = (known.div_ceil(self.block_size), kv.demand(held, known));
        let computed = (cached * self.block_size) as u32;
        let (known, limit) = (known as u32, request.limit);
        let progress = Progress {
            known,
            planned: computed,
            committed: computed,
            limit,
            prefill: known,
            ..Progress::default()
        };
        let own = kv.demand(held, policy::expected_tokens(&progress, horizon)).saturating_sub(needed);
        let alone = self.running.is_empty();
        held.reserve((limit as usize).div_ceil(self.block_size));
        if !policy::admits(needed, kv.available(), expected + own, alone)
            || kv.extend(held, blocks, 0).is_err()
        {
            kv.let_go(held);
            self.table.release(slot);
            return None;
        }
        timeline.end_span(Stage::Allocate);
        self.table.progress[at] = progress;
        if self.states.exist() {
            self.states.open(slot, request.salt, &progress, known_blocks);
        }
        Some(Placement { slot, computed })
    }

    /// A sequence runs from now on, in a slot that [`place`](Self::place) gave it.
    pub fn enter(&mut self, slot: u32, entry: Entry) {
        let at = slot as usize;
        let Entry { request, prompt_length, tenant, sampling, samples, order, .. } = entry;
        let Entry { tokens, borrows, rotation, prediction, .. } = entry;
        self.proposer.open(slot, &tokens, prompt_length as usize, prediction);
        self.table.tokens[at] = tokens;
        self.table.sampling[at] = sampling;
        self.table.samples[at] = samples;
        self.table.request[at] = request;
        self.table.tenant[at] = tenant;
        self.table.order[at] = order;
        self.table.rotation[at] = rotation;
        self.table.borrowed_in[at] = if borrows { self.step_ahead() } else { 0 };
        let position = self.running.partition_point(|runner| runner.order < order);
        self.running.insert(position, Runner { order, slot });
    }

    /// Puts the full blocks of what a sequence has committed into the prefix tree, generated tokens too. True if the
    /// tree did not know all of them.
    pub fn remember(&self, kv: &mut KvAllocator, slot: u32, salt: u64) -> bool {
        let at = slot as usize;
        let committed = self.table.progress[at].committed as usize;
        kv.insert(salt, &self.table.tokens[at][..committed], self.table.held[at].blocks()) > 0
    }

    /// Takes a sequence out of the table, whose answer is whole if it `finished`; returns its tokens.
    pub fn vacate(&mut self, kv: &mut KvAllocator, slot: u32, finished: bool) -> Vec<u32> {
        self.proposer.close(slot, finished);
        let at = slot as usize;
        kv.let_go(&mut self.table.held[at]);
        let order = self.table.order[at];
        if let Ok(position) = self.running.binary_search_by_key(&order, |runner| runner.order) {
            self.running.remove(position);
        }
        let tokens = std::mem::take(&mut self.table.tokens[at]);
        self.table.release(slot);
        tokens
    }

    /// Releases the blocks that only wrong drafts needed, and no row in flight may need.
    pub fn release_draft_blocks(&mut self, kv: &mut KvAllocator, slot: u32) {
        let at = slot as usize;
        let progress = &self.table.progress[at];
        let needed = (progress.known.max(progress.planned) as usize).div_ceil(self.block_size);
        kv.cut(&mut self.table.held[at], needed);
    }
}
