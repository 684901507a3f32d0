//! Granting rows: which sequences are in the next step, with how many tokens.
//!
//! Rows are granted in three passes, each seeing what the one before left of the room: decodes, prefills
//! under way, requests [admitted](crate::queue) now. Decodes can lack a block (admission takes those of
//! all known tokens), and victims come from the end of the running order, where nothing was granted yet: no grant is
//! taken back. A prompt can lack pages of its windows, which it takes as they come to them: it computes as many tokens as
//! there are pages for, and if that leaves a step without rows, the last in running order is preempted. A prefill finds in the prefix tree what those before it compute (see `sharing`). Drafts get what is left,
//! and never anything that another row could have used.
//!
//! O(running + admitted), besides admitting; no allocation in steady state.

use super::Steps;
use super::layout::StepLayout;
use super::proposer::Proposal;
use super::room::Room;
use super::rows::{Grant, Runner};
use crate::lifecycle::Lifecycle;
use crate::queue::policy;
use crate::rotation;
use pyengine_kv_allocator::KvAllocator;
use pyengine_speculation::Length;
use pyengine_telemetry::Stage;

impl Steps {
    /// Grants the rows of a step, drafts apart; returns the room that is left.
    pub fn grant(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, layout: &StepLayout) -> Room {
        self.decodes.clear();
        self.prefills.clear();
        self.published.clear();
        self.keep_last_snapshot(kv);
        let (tokens, pages, logits) =
            (self.config.max_tokens_per_step, layout.max_pages(), layout.max_logits());
        let mut room =
            Room { tokens, prefill: tokens, pages, logits, prompts: false, closed: false, starved: false };
        self.grant_decodes(kv, lifecycle, &mut room);
        if !self.decodes.is_empty() {
            let requests = (self.running.len() + lifecycle.queue.len()).min(self.concurrency);
            let cap = policy::prefill_beside_decodes(requests, self.config.prefill_beside_decodes);
            room.prefill = room.tokens.min(cap);
        }
        lifecycle.timeline.end_span(Stage::Allocate);
        self.grant_prefills(kv, lifecycle, &mut room);
        self.admit(kv, lifecycle, &mut room);
        lifecycle.timeline.end_span(Stage::Admit);
        room
    }

    /// A decode with as many of its proposed drafts as there is room for, and as `may_sample` says.
    fn draft_grant(
        &mut self,
        kv: &mut KvAllocator,
        room: &mut Room,
        grant: Grant,
        Proposal { mut segments, length: Length { host, device, .. }, first }: Proposal,
        may_sample: impl FnOnce(usize) -> usize,
    ) -> Grant {
        let on_device = device > 0;
        segments.truncate(host.into());
        debug_assert!(
            !on_device || segments.total() == 0,
            "a row's drafts are all of the host or of the device"
        );
        let progress = self.table.progress[grant.slot as usize];
        // Drafts follow the row's last token.
        let end = (progress.planned + grant.count) as usize;
        let most = rotation::room(end, self.table.rotation[grant.slot as usize], self.config.short_context)
            .min(self.states.draft_room(end));
        let wanted = match end == progress.reach() as usize {
            true if on_device => usize::from(device),
            true => segments.total(),
            false => 0,
        };
        let held = end.div_ceil(self.block_size);
        let reach = ((held + room.pages) * self.block_size).saturating_sub(end);
        let mut count = may_sample(wanted.min(room.tokens).min(room.logits).min(reach).min(most));
        let needed = (end + count).div_ceil(self.block_size);
        let holding = &mut self.table.held[grant.slot as usize];
        if needed > holding.covered() && kv.extend(holding, needed, needed).is_err() {
            count = count.min(holding.covered() * self.block_size - end);
        }
        room.tokens -= count;
        room.logits -= count;
        room.pages -= (end + count).div_ceil(self.block_size) - held;
        match on_device {
            true => segments.push_device(count),
            false => segments.truncate(count),
        }
        let count = count as u32;
        Grant {
            count: grant.count + count,
            drafts: count,
            first_draft: first as u32,
            on_device,
            segments,
            ..grant
        }
    }

    fn grant_decodes(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, room: &mut Room) {
        lifecycle.features.begin_plan(&self.table, &self.running);
        let mut next = 0;
        while let Some(&Runner { slot, .. }) = self.running.get(next) {
            next += 1;
            let at = slot as usize;
            let progress = self.table.progress[at];
            if !progress.decodes() {
                room.prompts |= progress.prefills();
                continue;
            }
            if !lifecycle.features.may_decode(self.table.request[at], slot) {
                continue;
            }
            if self.outgrows(slot) {
                // What steps in flight sample for it is known first: it is admitted again by the tokens that it has.
                if progress.pending == 0 && progress.drafted == 0 {
                    lifecycle.preempt(kv, self, slot);
                    next -= 1;
                }
                continue;
            }
            // A token is left for each of those behind it.
            let spare = room.tokens.saturating_sub(1 + self.running.len() - next);
            let count = (progress.remaining() as usize).min(1 + spare);
            let pages = (progress.planned as usize + count).div_ceil(self.block_size);
            if pages > room.pages || room.tokens == 0 {
                room.closed = true;
            } else if self.extend(kv, lifecycle, slot, pages, room) {
                room.tokens -= count;
                room.pages -= pages;
                self.decodes.push(Grant::new(slot, count as u32));
            }
        }
    }

    /// Whether a decode has more tokens than those that its rotations are for.
    fn outgrows(&self, slot: u32) -> bool {
        let (at, short) = (slot as usize, self.config.short_context);
        rotation::is_long(self.table.progress[at].reach() as usize, short) && self.table.rotation[at] == 0
    }

    /// Gives a sequence `blocks` blocks, at the expense of the last in running order. False if that is itself.
    fn extend(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        slot: u32,
        blocks: usize,
        room: &mut Room,
    ) -> bool {
        loop {
            let planned = self.table.progress[slot as usize].planned as usize;
            let held = &mut self.table.held[slot as usize];
            kv.slide(held, planned);
            if held.covered() >= blocks || kv.extend(held, blocks, blocks).is_ok() {
                return true;
            }
            let Some(&Runner { slot: victim, .. }) = self.running.last() else { return false };
            lifecycle.preempt(kv, self, victim);
            room.closed = true;
            if victim == slot {
                return false;
            }
        }
    }

    /// Preempts the last in running order; false if nothing runs.
    pub fn preempt_last(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle) -> bool {
        let Some(&Runner { slot, .. }) = self.running.last() else { return false };
        lifecycle.preempt(kv, self, slot);
        true
    }

    fn grant_prefills(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, room: &mut Room) {
        if !room.prompts {
            return;
        }
        for next in 0..self.running.len() {
            let slot = self.running[next].slot;
            if self.table.progress[slot as usize].prefills() && room.prefill > 0 {
                let request = lifecycle.requests.get(self.table.request[slot as usize]);
                if request.reusable == u32::MAX {
                    let skipped = self.catch_up(kv, slot, request.salt);
                    lifecycle.counters.prefix_hits += u64::from(skipped);
                }
                self.grant_prefill(kv, lifecycle, slot, room);
            }
        }
    }

    /// Gives a prefill its share of the step, which may be none.
    pub(super) fn grant_prefill(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        slot: u32,
        room: &mut Room,
    ) {
        let progress = self.table.progress[slot as usize];
        let request = self.table.request[slot as usize];
        if lifecycle.requests.get(request).reusable == u32::MAX && self.awaits_snapshot(slot) {
            return;
        }
        let reach = (room.pages * self.block_size).saturating_sub(progress.planned as usize);
        let wanted = policy::share(progress.remaining(), room.prefill, self.config.prefill_chunk);
        let mut count = wanted.min(reach);
        if count > 0 {
            let (start, held) = (progress.planned as usize, &mut self.table.held[slot as usize]);
            kv.slide(held, start);
            let covered = kv.extend_windows(held, (start + count).div_ceil(self.block_size));
            count = count.min((covered * self.block_size).saturating_sub(start));
            room.starved |= count == 0;
        }
        room.closed |= count < wanted;
        count = self.states.shorten(slot, progress.planned as usize, count);
        let samples = count > 0 && count == progress.remaining() as usize;
        if samples && !lifecycle.features.reserve(request, progress.pending as usize) {
            // It samples in a step that has room for what its features bring.
            count -= 1;
        }
        if count > 0 {
            let end = progress.planned as usize + count;
            room.tokens -= count;
            room.prefill -= count;
            room.pages -= end.div_ceil(self.block_size);
            let salt = lifecycle.requests.get(request).salt;
            if self.publish(kv, slot, salt, end) {
                lifecycle.queue.retry(); // its head may find more of its prompt now
            }
            self.prefills.push(Grant::new(slot, count as u32));
        }
    }

    /// Gives the decodes drafts from what the step has left.
    pub fn grant_drafts(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, room: &mut Room) {
        let features = &mut lifecycle.features;
        self.proposer.propose(&self.table, &self.decodes, &self.prefills, features);
        if self.decodes.is_empty() {
            return;
        }
        room.logits -= self.decodes.len() + self.prefills.len();
        for at in 0..self.decodes.len() {
            let grant = self.decodes[at];
            let request = self.table.request[grant.slot as usize];
            let proposal = self.proposer.proposal(at);
            let may_sample = |count| features.reserve_drafts(request, count);
            let grant = self.draft_grant(kv, room, grant, proposal, may_sample);
            self.decodes[at] = grant;
            self.proposer.granted(&grant, self.table.progress[grant.slot as usize].known);
        }
    }
}
