//! Admission: requests that wait get a place in the sequence table and the blocks of all their known tokens.
//!
//! The head of the queue is tried, and nobody behind it: it fits if its blocks can be had beside what the running
//! sequences are expected to grow by ([`policy::admits`]). What it has in the prefix tree it takes from there. Where it
//! does not fit, it is not tried again until something has changed for it.
//!
//! O(running) a step in which somebody is tried, and O(known tokens) a request.

use crate::kv_allocator::KvAllocator;
use crate::scheduler::planner::{Planner, Runner};
use crate::scheduler::queue::policy;
use crate::scheduler::step::plan::Room;
use crate::scheduler::step::sequence_table::{Progress, RequestId};
use crate::telemetry::{Span, Stage, Track};

impl Planner {
    /// Admits from the queue while there is room in the step and for its head.
    pub(in crate::scheduler) fn admit(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        let mut growth = None;
        while self.running.len() < self.concurrency && room.tokens > 0 && room.pages > 0 && !room.closed {
            let Some(id) = self.waiting.head(&self.tenants) else { return };
            // What a running sequence takes, it was expected to take: only a gain makes another try worth it.
            if self.stuck.is_some_and(|(head, free, running)| {
                head == id && running == self.running.len() && kv.available() <= free
            }) {
                return;
            }
            let expected = growth.unwrap_or_else(|| self.expected_growth());
            let Some(slot) = self.try_admit(kv, id, expected) else {
                self.stuck = Some((id, kv.available(), self.running.len()));
                return;
            };
            let progress = &self.table.progress[slot as usize];
            let held = self.table.blocks[slot as usize].len();
            growth = Some(expected + policy::growth(progress, held, self.block_size, self.horizon));
            self.grant_prefill(kv, slot, room);
        }
    }

    /// Blocks that the running sequences will want soon.
    fn expected_growth(&self) -> usize {
        let of = |runner: &Runner| {
            let slot = runner.slot as usize;
            let held = self.table.blocks[slot].len();
            policy::growth(&self.table.progress[slot], held, self.block_size, self.horizon)
        };
        self.running.iter().map(of).sum()
    }

    /// Moves the head of the queue into the table, if its blocks can be had beside the `expected` growth of others.
    fn try_admit(&mut self, kv: &mut KvAllocator, id: RequestId, expected: usize) -> Option<u32> {
        self.timeline.end_span(Stage::Admit);
        let request = self.requests.get(id);
        let known = request.tokens.len();
        let slot = self.table.acquire()?;
        let at = slot as usize;
        let blocks = &mut self.table.blocks[at];
        // At least one token is left to compute, or there would be no logits to sample from.
        let cached = kv.match_prefix(request.salt, &request.tokens, (known - 1) / self.block_size, blocks);
        self.timeline.end_span(Stage::Match);
        let needed = known.div_ceil(self.block_size) - cached;
        let computed = (cached * self.block_size) as u32;
        let limit = request.limit;
        let known = known as u32;
        let progress = Progress {
            known,
            planned: computed,
            committed: computed,
            limit,
            prefill: known,
            ..Progress::default()
        };
        let own = policy::growth(&progress, cached + needed, self.block_size, self.horizon);
        let alone = self.running.is_empty();
        blocks.reserve((limit as usize).div_ceil(self.block_size).saturating_sub(blocks.len()));
        if !policy::admits(needed, kv.available(), expected + own, alone)
            || kv.allocate(needed, blocks).is_err()
        {
            kv.release(blocks);
            blocks.clear();
            self.table.release(slot);
            return None;
        }
        self.timeline.end_span(Stage::Allocate);
        self.table.progress[at] = progress;
        self.enter(id, slot, computed);
        Some(slot)
    }

    /// Makes a request that has its blocks a sequence that runs, `computed` of its tokens found in the tree.
    fn enter(&mut self, id: RequestId, slot: u32, computed: u32) {
        let at = slot as usize;
        let request = self.requests.get_mut(id);
        self.waiting.remove(&request.ticket);
        request.slot = Some(slot);
        let known = request.tokens.len() as u32;
        let first = request.cached_tokens.is_none();
        let cached = *request.cached_tokens.get_or_insert(computed.min(request.prompt_length));
        self.serial += 1;
        let order = policy::running_order(request.ticket.class, self.serial);
        let mut tokens = std::mem::take(&mut request.tokens);
        tokens.reserve((request.limit - known) as usize);
        self.table.tokens[at] = tokens;
        self.table.sampling[at] = request.sampling;
        self.table.request[at] = id;
        self.table.tenant[at] = request.ticket.tenant;
        self.table.order[at] = order;
        self.table.borrowed_in[at] = if computed > 0 { self.step_ahead() } else { 0 };
        self.open_drafting(id, slot);
        self.penalized += usize::from(self.requests.get(id).penalties.is_some());
        let request = self.requests.get_mut(id);
        let position = self.running.partition_point(|runner| runner.order < order);
        self.running.insert(position, Runner { order, slot });
        self.counters.prefix_queries += u64::from(known);
        self.counters.prefix_hits += u64::from(computed);
        // What is computed again after a preemption is not the tenant's fault.
        if first {
            let now_ns = self.now_ns;
            self.distributions.admitted(request, now_ns);
            let (stage, track) = (Stage::QueueWait, Track::Request);
            let start = request.ticket.arrival_ns.min(now_ns);
            let step = request.key.request;
            self.timeline.record(Span { stage, track, start, end: now_ns, step });
            self.tenants.admit(request.ticket.tenant, known - computed);
            self.counters.prompt_tokens += u64::from(request.prompt_length);
            self.counters.cached_tokens += u64::from(cached);
        }
    }
}
