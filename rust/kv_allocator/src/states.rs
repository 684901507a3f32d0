//! States of layers that fold all tokens before into one: a slot for each running sequence, and snapshots to begin from.
//!
//! ```text
//!   tree       [b0 b1 b2 b3 b4 b5]      a state cannot be cut: a hit ends at a snapshot
//!                     *        *
//!   slots      [ 7  ] [ 4 ] [ 9  ]      4 behind b2, 9 behind b5, 7 of a sequence that runs
//! ```
//!
//! What a step does for a row with a state, and for how long the allocator keeps the slots for it:
//!
//! 1. Before it, if [`Holding::take_restore`] names a snapshot, the device copies that into the sequence's own slot. A
//!    sequence at its first token begins from zeros.
//! 2. It reads and writes [`Holding::state`].
//! 3. Behind it, if the caller took a [`snapshot`](KvAllocator::snapshot), the device copies the sequence's slot into
//!    that one. Where to take them, the caller decides: ends of prompts, branches, every `snapshot_interval` tokens.
//!
//! Both copies are the device's in order, so that a snapshot has to be held until its step is planned, not until it ran:
//! then the caller [releases](KvAllocator::release_snapshot) it. Snapshots are taken when all rows of the step are planned:
//! none of these can be restored from one that is written behind it.
//!
//! A slot is an extent of the pool (`extents`). It is taken where no page is in use, else where what is cached is the
//! oldest. A page evicts the oldest of all that is cached, snapshots among it. A sequence may find no slot though there
//! are as many pages, when running sequences have some in every extent; it waits for one of them to end. One that goes on
//! from a snapshot and finds no other slot takes that of the snapshot, which is no more to be found: so a sequence that is
//! alone always has room.

use super::{Holding, KvAllocator, SlotId};
use pyengine_base::error::{Error, Result};

impl Holding {
    /// The snapshot that the device is to copy into the slot of the state, before anything is computed. The caller takes
    /// it when the row has its blocks, and releases it when the step is planned.
    pub fn take_restore(&mut self) -> Option<SlotId> {
        self.restore.take()
    }
}

impl KvAllocator {
    /// Pages of a state; 0 where no layer has one.
    pub fn state_pages(&self) -> usize {
        self.pool.state_pages()
    }

    /// Whether layers have states.
    pub fn has_states(&self) -> bool {
        self.state_pages() > 0
    }

    /// Slots that there are at most; the first page of each is its number times [`state_pages`](Self::state_pages).
    pub fn num_slots(&self) -> usize {
        self.pool.num_slots()
    }

    /// Makes the state behind `tokens`, all of which a sequence has computed in whole blocks, a place to begin from, and
    /// returns the held slot to copy it to. None if there is one already, which becomes as new; if the tree does not know
    /// the tokens; or if there is no slot. With `chances` it is passed over as often before it is evicted.
    pub fn snapshot(&mut self, salt: u64, tokens: &[u32], chances: u8) -> Option<SlotId> {
        assert!(
            self.has_states() && tokens.len().is_multiple_of(self.block_size),
            "a snapshot behind {} tokens, which are not whole blocks of a model with states",
            tokens.len()
        );
        let block = self.last_known(salt, tokens)?;
        if let Some(known) = self.pool.snapshot_behind(block) {
            self.pool.renew_snapshot(known);
            return None;
        }
        let slot = self.take_slot()?;
        // What was evicted for it may have been a block of this path.
        match self.last_known(salt, tokens) {
            Some(block) => {
                self.pool.keep_snapshot(slot, block, chances);
                Some(slot)
            }
            None => {
                self.pool.give_slot_back(slot);
                None
            }
        }
    }

    /// Snapshots that there are, held or cached.
    pub fn num_snapshots(&self) -> usize {
        self.pool.num_snapshots()
    }

    /// Makes a sequence hold the snapshot behind its first `blocks` blocks until it lets go of everything, and no longer
    /// the one that it held so before. None where there is no such snapshot; 0 blocks have none.
    pub fn keep_snapshot(&mut self, holding: &mut Holding, blocks: usize) {
        let last = blocks.checked_sub(1).and_then(|last| holding.blocks().get(last));
        let found = last.and_then(|&block| self.pool.snapshot_behind(block));
        if found == holding.kept {
            return;
        }
        if let Some(slot) = found {
            self.pool.hold_snapshot(slot);
        }
        if let Some(before) = std::mem::replace(&mut holding.kept, found) {
            self.pool.release_snapshot(before);
        }
    }

    /// Lets go of a snapshot that was taken, or that a sequence was to be restored from.
    pub fn release_snapshot(&mut self, slot: SlotId) {
        self.pool.release_snapshot(slot);
    }

    /// Forgets the snapshot in `slot`, if it is one's: the step that was to write it failed. By then it may be another's,
    /// which is only computed once more than it had to be.
    pub fn forget_snapshot(&mut self, slot: SlotId) {
        if self.pool.is_snapshot(slot) {
            self.pool.forget_snapshot(slot);
        }
    }

    /// How many leading blocks of `tokens` are cached, whether or not a sequence could go on from there. O(depth).
    pub fn known_prefix(&self, salt: u64, tokens: &[u32], max_blocks: usize) -> usize {
        self.tree.as_ref().map_or(0, |tree| tree.find(salt, tokens, max_blocks, |_| {}))
    }

    /// The block that the tree has for the last of `tokens`, whole blocks.
    fn last_known(&self, salt: u64, tokens: &[u32]) -> Option<super::BlockId> {
        let blocks = tokens.len() / self.block_size;
        let mut last = None;
        let found = self.tree.as_ref()?.find(salt, tokens, blocks, |run| last = run.last().copied());
        last.filter(|_| found == blocks)
    }

    /// The least pages that a sequence wants for its state: none where it can go on in the slot of the snapshot that it
    /// has found.
    pub(super) fn state_demand(&self, holding: &Holding) -> usize {
        let has = holding.state.is_some() || holding.restore.is_some_and(|slot| self.pool.is_held_once(slot));
        if has { 0 } else { self.state_pages() }
    }

    /// Gives a sequence the slot of its state, if layers have one, beside room for `blocks` and `pages`: one to copy its
    /// snapshot to; or that of the snapshot, where there is room for one only and no other sequence is restored from it.
    pub(super) fn give_state(&mut self, holding: &mut Holding, blocks: usize, pages: usize) -> Result<()> {
        let size = self.state_pages();
        if size == 0 {
            return Ok(());
        }
        let wanted = if holding.state.is_some() { 0 } else { size };
        let short = match self.check_room(blocks, pages + wanted) {
            Ok(()) if wanted == 0 => return Ok(()),
            Ok(()) => match self.take_slot() {
                Some(slot) => {
                    holding.state = Some(slot);
                    return Ok(());
                }
                None => Error::OutOfBlocks { needed: size, available: 0 },
            },
            Err(short) => short,
        };
        let snapshot = holding.restore.filter(|&slot| self.pool.is_held_once(slot));
        let freed = size - wanted;
        let Some(slot) = snapshot.filter(|_| self.check_room(blocks, pages.saturating_sub(freed)).is_ok())
        else {
            return Err(short);
        };
        self.pool.forget_snapshot(slot);
        holding.restore = None;
        if let Some(own) = holding.state.replace(slot) {
            self.pool.give_slot_back(own);
        }
        Ok(())
    }

    /// Holds the snapshot behind the first `blocks` blocks of a sequence, which it was found to go on from.
    pub(super) fn find_snapshot(&mut self, holding: &mut Holding, blocks: usize) {
        let last = blocks.checked_sub(1).map(|last| holding.blocks()[last]);
        let found = last.and_then(|block| self.pool.snapshot_behind(block));
        if let Some(slot) = found {
            self.pool.hold_snapshot(slot);
        }
        if let Some(before) = std::mem::replace(&mut holding.restore, found) {
            self.pool.release_snapshot(before);
        }
    }

    /// Frees the slot of a sequence, and lets go of the snapshots that it holds: these are cached as the newest.
    pub(super) fn let_go_of_state(&mut self, holding: &mut Holding) {
        if let Some(slot) = holding.state.take() {
            self.pool.give_slot_back(slot);
        }
        for slot in [holding.restore.take(), holding.kept.take()].into_iter().flatten() {
            self.pool.release_snapshot(slot);
        }
    }

    /// Holds a slot, in a whole extent or in the oldest that can be emptied.
    pub(super) fn take_slot(&mut self) -> Option<SlotId> {
        loop {
            if let Some(slot) = self.pool.take_slot() {
                return Some(slot);
            }
            let extent = self.pool.oldest_extent()?;
            if self.pool.is_snapshot(extent) {
                self.evict_snapshot(extent);
                continue;
            }
            for page in self.pool.pages_of_extent(extent) {
                if let Some((block, group)) = self.pool.owner(page) {
                    self.evict(block, group);
                }
            }
        }
    }

    /// Evicts a cached snapshot, or passes it over at the cost of one of its chances.
    pub(super) fn evict_snapshot(&mut self, slot: SlotId) {
        if !self.pool.pass_over(slot) {
            self.pool.forget_snapshot(slot);
        }
    }
}
