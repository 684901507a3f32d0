//! `plan`: choose the rows of the next step.
//!
//! Rows are granted in three passes, each seeing what the one before left of the budget: decodes, prefills
//! under way, requests [admitted](crate::scheduler::queue) now. Only decodes can lack a block (admission takes those of all
//! known tokens), and victims come from the end of the running order, where nothing was granted yet: no grant is taken
//! back. A prefill finds in the prefix tree what those before it compute (see `sharing`). What was granted is
//! [written](super::fill) at the end.
//!
//! O(running + admitted), besides admitting and writing; no allocation in steady state.

use crate::error::Result;
use crate::kv_allocator::KvAllocator;
use crate::scheduler::planner::{Grant, Planner, Runner};
use crate::scheduler::queue::policy;
use crate::telemetry::Stage;

/// What the step that is being planned has room for.
pub(in crate::scheduler) struct Room {
    pub tokens: usize,
    pub pages: usize,
    pub logits: usize,
    pub penalties: usize,
    // Nobody is admitted: a sequence was preempted or left out.
    pub closed: bool,
}

impl Planner {
    /// Plans a step and writes it into `bytes`; returns the number of rows. 0 when there is nothing to run now, or
    /// the detokenizer's ring is full: then no step is in flight for it.
    pub fn plan(&mut self, kv: &mut KvAllocator, bytes: &mut [u8], now_ns: u64) -> Result<usize> {
        let mut buffers = self.layout.view(bytes)?;
        self.now_ns = now_ns;
        self.expire(kv, now_ns);
        self.flush(Stage::Admit)?;
        let mut speculative = self.drafts_now();
        if speculative && !self.in_flight.is_empty() && self.has_prefills() {
            // Prompts go on beside the step in flight; drafts wait until there are none.
            speculative = false;
        }
        if self.outbox.held() > 0 {
            self.hold_up_drafting();
            return Ok(0);
        }
        // Drafts follow tokens that are known.
        if speculative && !self.in_flight.is_empty() {
            return Ok(0);
        }
        let pages = self.layout.max_pages();
        let (tokens, logits) = (self.config.max_tokens_per_step, self.layout.max_logits());
        let penalties = self.layout.max_penalties();
        let mut room = Room { tokens, pages, logits, penalties, closed: false };
        self.decodes.clear();
        self.prefills.clear();
        self.published.clear();
        self.grant_penalties(&mut room);
        self.grant_decodes(kv, &mut room);
        self.timeline.end_span(Stage::Allocate);
        self.grant_prefills(kv, &mut room);
        self.admit(kv, &mut room);
        self.timeline.end_span(Stage::Admit);
        if self.decodes.is_empty() && self.prefills.is_empty() {
            return Ok(0);
        }
        if speculative {
            self.grant_drafts(kv, &mut room);
            self.timeline.end_span(Stage::Draft);
        }
        let mut record = self.spare.pop().unwrap_or_default();
        self.counters.steps += 1;
        self.timeline.set_step(self.counters.steps);
        record.number = self.counters.steps;
        std::mem::swap(&mut record.published, &mut self.published);
        self.fill(&mut buffers, &mut record);
        let rows = record.rows.len();
        record.planned_ns = now_ns;
        record.prefills = self.prefills.len();
        record.speculative = speculative;
        record.caught_up = if speculative { self.caught_up } else { 0 };
        if self.in_flight.is_empty() {
            self.timeline.set_in_flight_since(now_ns);
        }
        self.in_flight.push_back(record);
        self.timeline.end_span(Stage::BufferFill);
        Ok(rows)
    }

    /// Whether a prompt is under way, or waits and may be admitted: those that wait for others to end hold up nobody.
    pub(in crate::scheduler) fn has_prefills(&self) -> bool {
        let under_way = |runner: &Runner| self.table.progress[runner.slot as usize].remaining() > 1;
        let admits = self.running.len() < self.concurrency && self.stuck.is_none();
        (admits && self.waiting.len() > 0) || self.running.iter().any(under_way)
    }

    fn grant_decodes(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        let mut next = 0;
        while let Some(&Runner { slot, .. }) = self.running.get(next) {
            next += 1;
            let progress = self.table.progress[slot as usize];
            if progress.remaining() != 1 || self.lacks_penalty_budget(slot) {
                continue;
            }
            let pages = (progress.planned as usize + 1).div_ceil(self.block_size);
            if pages > room.pages || room.tokens == 0 {
                room.closed = true;
            } else if self.extend(kv, slot, pages, room) {
                room.tokens -= 1;
                room.pages -= pages;
                self.decodes.push(Grant::new(slot, 1));
            }
        }
    }

    /// Gives a sequence `blocks` blocks, at the expense of the last in running order. False if that is itself.
    fn extend(&mut self, kv: &mut KvAllocator, slot: u32, blocks: usize, room: &mut Room) -> bool {
        loop {
            let held = &mut self.table.blocks[slot as usize];
            if held.len() >= blocks || kv.allocate(blocks - held.len(), held).is_ok() {
                return true;
            }
            let Some(&Runner { slot: victim, .. }) = self.running.last() else { return false };
            self.preempt(kv, victim);
            room.closed = true;
            if victim == slot {
                return false;
            }
        }
    }

    fn grant_prefills(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        for next in 0..self.running.len() {
            let slot = self.running[next].slot;
            if self.table.progress[slot as usize].remaining() > 1 && room.tokens > 0 {
                self.catch_up(kv, slot);
                self.grant_prefill(kv, slot, room);
            }
        }
    }

    /// Gives a prefill its share of the step, which may be none.
    pub(in crate::scheduler) fn grant_prefill(&mut self, kv: &mut KvAllocator, slot: u32, room: &mut Room) {
        let progress = self.table.progress[slot as usize];
        let reach = (room.pages * self.block_size).saturating_sub(progress.planned as usize);
        let wanted = policy::share(progress.remaining(), room.tokens, self.config.prefill_chunk);
        let mut count = wanted.min(reach);
        room.closed |= count < wanted;
        if count > 0 && count == progress.remaining() as usize && !self.seat_prefill(slot, &progress, room) {
            // It samples in a step that has a place for its penalties.
            count -= 1;
        }
        if count > 0 {
            room.tokens -= count;
            room.pages -= (progress.planned as usize + count).div_ceil(self.block_size);
            self.publish(kv, slot, progress.planned as usize + count);
            self.prefills.push(Grant::new(slot, count as u32));
        }
    }
}
