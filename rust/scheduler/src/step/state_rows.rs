//! The states of a step's rows: where each row begins from, and which snapshots it takes; see [`states`](super::states).

use super::Steps;
use super::buffers::{NO_SLOT, StepBuffers};
use super::rows::{Grant, StepRecord};
use super::states::MOST_CHANCES;
use pyengine_kv_allocator::{KvAllocator, SlotId};

impl Steps {
    /// The drafts of a sequence's last row are judged: `right` of them held.
    pub(super) fn accept(&mut self, slot: u32, right: usize) {
        self.states.accept(slot, right);
    }

    /// Lets the last in running order hold the last snapshot that it took, and no other sequence any. Nothing preempts one
    /// that is alone, and it may want the memory.
    pub(super) fn keep_last_snapshot(&mut self, kv: &mut KvAllocator) {
        if !self.states.takes_snapshots {
            return;
        }
        let last = self.running.len().saturating_sub(1);
        for (at, runner) in self.running.iter().enumerate() {
            let border = if at == last && last > 0 { self.states.last_taken(runner.slot) } else { 0 };
            let blocks = border as usize / self.block_size;
            kv.keep_snapshot(&mut self.table.held[runner.slot as usize], blocks);
        }
    }

    /// Numbers by name: the snapshots that were taken, and how often a sequence began from one.
    pub(crate) fn state_stats(&self) -> [(&'static str, u64); 2] {
        [("snapshots_taken", self.states.taken), ("snapshot_hits", self.states.hits)]
    }

    /// A prefill waits for a snapshot that a sequence before it is about to take, of a prefix of its own tokens.
    pub(crate) fn awaits_snapshot(&self, slot: u32) -> bool {
        if !self.states.takes_snapshots {
            return false;
        }
        let (at, table) = (slot as usize, &self.table);
        let (tokens, own) = (&table.tokens[at], &table.progress[at]);
        let before = self.running.iter().take_while(|runner| runner.slot != slot);
        before.map(|runner| runner.slot).any(|other| {
            let (state, progress) = (&self.states.of[other as usize], &table.progress[other as usize]);
            let taken =
                if progress.prefills() { self.states.border_behind(other, progress.planned) } else { None };
            taken.is_some_and(|border| {
                let prefix = ..border as usize;
                own.planned < border
                    && border < own.known
                    && border < progress.known
                    && state.salt == self.states.of[at].salt
                    && table.tokens[other as usize][prefix] == tokens[prefix]
            })
        })
    }

    /// Writes where the granted rows have their states, and takes snapshots: the last use of the cache in a plan, so that
    /// no row of the step begins from a snapshot that another writes.
    pub(crate) fn fill_states(
        &mut self,
        kv: &mut KvAllocator,
        out: &mut StepBuffers<'_>,
        record: &mut StepRecord,
    ) {
        if !self.states.exist() {
            return;
        }
        for row in 0..self.decodes.len() + self.prefills.len() {
            let decode = self.decodes.get(row).copied();
            let grant = decode.unwrap_or_else(|| self.prefills[row - self.decodes.len()]);
            self.fill_state(kv, out, row, grant);
            let snapshot = self.take_snapshot(kv, record, grant);
            let (slot, tokens) = snapshot.map_or((NO_SLOT, 0), |(slot, tokens)| (slot as i32, tokens as i32));
            (out.snapshot_slot[row], out.snapshot_tokens[row]) = (slot, tokens);
        }
        self.states.held.drain(..).for_each(|slot| kv.release_snapshot(slot));
    }

    /// Where a row's state is, and where it begins from.
    fn fill_state(&mut self, kv: &KvAllocator, out: &mut StepBuffers<'_>, row: usize, grant: Grant) {
        let at = grant.slot as usize;
        let (start, held) = (self.table.progress[at].planned, &mut self.table.held[at]);
        debug_assert!(kv.has_states());
        let own = held.state().expect("a sequence has its state with its first block") as i32;
        let restored = held.take_restore();
        self.states.held.extend(restored);
        let state = &mut self.states.of[at];
        if restored.is_some() {
            (state.last, state.begun) = (start, start);
        }
        out.state_slot[row] = own;
        out.state_source[row] = match restored {
            Some(snapshot) => snapshot as i32,
            None if start == 0 => NO_SLOT,
            None => own,
        };
        out.state_accepted[row] = std::mem::take(&mut state.accepted) as i32;
        out.state_drafts[row] = grant.drafts as i32;
    }

    /// Takes the snapshot that is wanted of a row: the slot, held until the step is planned, and behind how many tokens.
    fn take_snapshot(
        &mut self,
        kv: &mut KvAllocator,
        record: &mut StepRecord,
        grant: Grant,
    ) -> Option<(SlotId, u32)> {
        let at = grant.slot as usize;
        let progress = &self.table.progress[at];
        let certain = (progress.planned + grant.count - grant.drafts).min(progress.known);
        let border = self.states.border_within(grant.slot, progress.planned, certain)?;
        // Where memory is short the new one takes the place of the one that the sequence has kept.
        kv.keep_snapshot(&mut self.table.held[at], 0);
        let (blocks, tokens) = (self.table.held[at].blocks(), &self.table.tokens[at][..border as usize]);
        let state = &mut self.states.of[at];
        let saved = border - std::mem::replace(&mut state.last, border);
        // Blocks of an answer enter the tree for it, those of a prompt have. Steps in flight may compute the last of them.
        kv.insert(state.salt, tokens, blocks);
        let computed = (progress.committed as usize / self.block_size).min(border as usize / self.block_size);
        record.published.extend_from_slice(&blocks[computed..border as usize / self.block_size]);
        let chances = (saved / self.states.weight).min(MOST_CHANCES) as u8;
        let slot = kv.snapshot(state.salt, tokens, chances)?;
        record.snapshots.push(slot);
        self.states.taken += 1;
        self.states.held.push(slot);
        Some((slot, border - progress.planned))
    }
}
