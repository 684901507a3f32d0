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

use super::{Grant, Runner, Steps};
use crate::features::drafts::Proposal;
use crate::planner::Planner;
use crate::queue::policy;
use crate::rotation;
use pyengine_kv_allocator::KvAllocator;
use pyengine_speculation::Length;

/// The room that the step being planned has left.
pub(crate) struct Room {
    pub tokens: usize,
    /// Of those, tokens that prefills may take.
    pub prefill: usize,
    pub pages: usize,
    pub logits: usize,
    /// A running sequence has a prompt to compute.
    pub prompts: bool,
    /// Nothing is admitted: a sequence was preempted or left out.
    pub closed: bool,
    /// A prompt got no tokens because a window of it got no pages.
    pub starved: bool,
}

impl Steps {
    /// Begins to plan a step.
    pub fn clear(&mut self) {
        self.decodes.clear();
        self.prefills.clear();
        self.published.clear();
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
        let most = rotation::room(end, self.table.rotation[grant.slot as usize], self.short_context);
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
}

impl Planner {
    pub(crate) fn grant_decodes(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        self.features.penalties.grant(&self.steps);
        let mut next = 0;
        while let Some(&Runner { slot, .. }) = self.steps.running.get(next) {
            next += 1;
            let at = slot as usize;
            let progress = self.steps.table.progress[at];
            if !progress.decodes() {
                room.prompts |= progress.prefills();
                continue;
            }
            if !self.features.penalties.may_decode(self.steps.table.request[at], slot) {
                continue;
            }
            if self.outgrows(slot) {
                // What steps in flight sample for it is known first: it is admitted again by the tokens that it has.
                if progress.pending == 0 && progress.drafted == 0 {
                    self.preempt(kv, slot);
                    next -= 1;
                }
                continue;
            }
            // A token is left for each of those behind it.
            let spare = room.tokens.saturating_sub(1 + self.steps.running.len() - next);
            let count = (progress.remaining() as usize).min(1 + spare);
            let pages = (progress.planned as usize + count).div_ceil(self.steps.block_size);
            if pages > room.pages || room.tokens == 0 {
                room.closed = true;
            } else if self.extend(kv, slot, pages, room) {
                room.tokens -= count;
                room.pages -= pages;
                self.steps.decodes.push(Grant::new(slot, count as u32));
            }
        }
    }

    /// Whether a decode has more tokens than those that its rotations are for.
    fn outgrows(&self, slot: u32) -> bool {
        let (at, short) = (slot as usize, self.config.short_context);
        rotation::is_long(self.steps.table.progress[at].reach() as usize, short)
            && self.steps.table.rotation[at] == 0
    }

    /// Gives a sequence `blocks` blocks, at the expense of the last in running order. False if that is itself.
    fn extend(&mut self, kv: &mut KvAllocator, slot: u32, blocks: usize, room: &mut Room) -> bool {
        loop {
            let planned = self.steps.table.progress[slot as usize].planned as usize;
            let held = &mut self.steps.table.held[slot as usize];
            kv.slide(held, planned);
            if held.covered() >= blocks || kv.extend(held, blocks, blocks).is_ok() {
                return true;
            }
            if self.steps.table.progress[slot as usize].drafted > 0 {
                // It may not need them: nothing is preempted for drafts in flight.
                return false;
            }
            let Some(&Runner { slot: victim, .. }) = self.steps.running.last() else { return false };
            self.preempt(kv, victim);
            room.closed = true;
            if victim == slot {
                return false;
            }
        }
    }

    /// Preempts the last in running order; false if nothing runs.
    pub(crate) fn preempt_last(&mut self, kv: &mut KvAllocator) -> bool {
        let Some(&Runner { slot, .. }) = self.steps.running.last() else { return false };
        self.preempt(kv, slot);
        true
    }

    pub(crate) fn grant_prefills(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        if !room.prompts {
            return;
        }
        for next in 0..self.steps.running.len() {
            let slot = self.steps.running[next].slot;
            if self.steps.table.progress[slot as usize].prefills() && room.prefill > 0 {
                let request = self.requests.get(self.steps.table.request[slot as usize]);
                if request.reusable == u32::MAX {
                    let skipped = self.steps.catch_up(kv, slot, request.salt);
                    self.counters.prefix_hits += u64::from(skipped);
                }
                self.grant_prefill(kv, slot, room);
            }
        }
    }

    /// Gives a prefill its share of the step, which may be none.
    pub(crate) fn grant_prefill(&mut self, kv: &mut KvAllocator, slot: u32, room: &mut Room) {
        let progress = self.steps.table.progress[slot as usize];
        let request = self.steps.table.request[slot as usize];
        let reach = (room.pages * self.steps.block_size).saturating_sub(progress.planned as usize);
        let wanted = policy::share(progress.remaining(), room.prefill, self.config.prefill_chunk);
        let mut count = wanted.min(reach);
        if count > 0 {
            let (start, held) = (progress.planned as usize, &mut self.steps.table.held[slot as usize]);
            kv.slide(held, start);
            let covered = kv.extend_windows(held, (start + count).div_ceil(self.steps.block_size));
            count = count.min((covered * self.steps.block_size).saturating_sub(start));
            room.starved |= count == 0;
        }
        room.closed |= count < wanted;
        let samples = count > 0 && count == progress.remaining() as usize;
        if samples && !self.features.penalties.reserve(request, progress.pending as usize) {
            // It samples in a step that has room for its penalties.
            count -= 1;
        }
        if count > 0 {
            let end = progress.planned as usize + count;
            room.tokens -= count;
            room.prefill -= count;
            room.pages -= end.div_ceil(self.steps.block_size);
            let salt = self.requests.get(request).salt;
            if self.steps.publish(kv, slot, salt, end) {
                self.queue.retry(); // its head may find more of its prompt now
            }
            self.steps.prefills.push(Grant::new(slot, count as u32));
        }
    }

    /// Gives the decodes drafts from what the step has left.
    pub(crate) fn grant_drafts(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        self.features.propose(&self.steps);
        if self.steps.decodes.is_empty() {
            return;
        }
        room.logits -= self.steps.decodes.len() + self.steps.prefills.len();
        for at in 0..self.steps.decodes.len() {
            let grant = self.steps.decodes[at];
            let request = self.steps.table.request[grant.slot as usize];
            let penalties = &mut self.features.penalties;
            let proposal = self.features.drafts.proposal(at);
            let may_sample = |count| penalties.reserve_drafts(request, count);
            let grant = self.steps.draft_grant(kv, room, grant, proposal, may_sample);
            self.steps.decodes[at] = grant;
            self.features.drafts.granted(&grant, self.steps.table.progress[grant.slot as usize].known);
        }
    }
}
