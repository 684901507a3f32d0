//! Slots of states in the pool: those that sequences run on, and snapshots behind blocks of the tree.
//!
//! ```text
//!             take_slot                                give_slot_back
//!    ┌──────┐ ───────────────► ┌──────┐ ───────────────────────────────► free
//!    │ free │                  │ held │  keep_snapshot
//!    └──────┘                  └──┬───┘ ──────────────► known by a block, held until it is copied
//!       ▲                         ▲                        │ release_snapshot
//!       │ forgotten, evicted      │ hold_snapshot          ▼
//!       └─────────────────────────┴──────────────────── cached, in the list of all that is cached
//! ```
//!
//! A snapshot goes when the tree forgets its block, or is evicted alone. It may have *chances*: each lets it pass once
//! when it is the oldest of all, so that what saves more computation a byte stays longer. All is O(1).

use std::ops::Range;

use super::super::ids::{BlockId, PageId, SlotId};
use super::snapshots::{KNOWN, Snapshot};
use super::{BlockPool, NOWHERE};

impl BlockPool {
    /// Pages of a state, 0 where no layer has one.
    pub(in super::super) fn state_pages(&self) -> usize {
        self.snapshots.pages
    }

    /// Slots that there are at most.
    pub(in super::super) fn num_slots(&self) -> usize {
        self.snapshots.slots.len()
    }

    /// Snapshots that the tree knows.
    pub(in super::super) fn num_snapshots(&self) -> usize {
        self.snapshots.known
    }

    /// The snapshot of the state behind `block`.
    #[inline]
    pub(in super::super) fn snapshot_behind(&self, block: BlockId) -> Option<SlotId> {
        self.snapshots.behind.get(block as usize).copied().flatten()
    }

    /// Holds a free slot, if an extent is free.
    pub(in super::super) fn take_slot(&mut self) -> Option<SlotId> {
        let slot = self.pages.extents_mut().take_slot()?;
        let at = self.at_slot(slot);
        debug_assert!(self.entries[at].holds == 0 && self.entries[at].place == NOWHERE);
        self.entries[at].holds = 1;
        Some(slot)
    }

    /// Frees a slot that is held and no snapshot's. Panics if it is not.
    pub(in super::super) fn give_slot_back(&mut self, slot: SlotId) {
        let at = self.at_slot(slot);
        let entry = &mut self.entries[at];
        assert!(entry.holds == 1 && entry.place == NOWHERE, "state slot {slot} is no sequence's");
        entry.holds = 0;
        self.pages.extents_mut().give_slot_back(slot);
    }

    /// Makes a held slot the snapshot behind `block`, which the tree knows and which has none.
    pub(in super::super) fn keep_snapshot(&mut self, slot: SlotId, block: BlockId, chances: u8) {
        let at = self.at_slot(slot);
        debug_assert!(self.place(block) != NOWHERE && self.snapshot_behind(block).is_none());
        self.entries[at].place = KNOWN;
        self.snapshots.slots[slot as usize] = Snapshot { block, chances };
        self.snapshots.behind[block as usize] = Some(slot);
        self.snapshots.known += 1;
    }

    /// Holds a snapshot once more.
    pub(in super::super) fn hold_snapshot(&mut self, slot: SlotId) {
        let at = self.at_slot(slot);
        self.entries[at].holds += 1;
        if self.entries[at].holds == 1 {
            self.uncache_slot(slot);
        }
    }

    /// Lets go of a snapshot once: the last to do so makes it cached, or free if it was forgotten meanwhile. Panics if it
    /// is not held.
    pub(in super::super) fn release_snapshot(&mut self, slot: SlotId) {
        let at = self.at_slot(slot);
        let entry = &mut self.entries[at];
        assert!(entry.holds > 0, "release of state slot {slot}, which is not held");
        entry.holds -= 1;
        if entry.holds > 0 {
        } else if entry.place == NOWHERE {
            self.pages.extents_mut().give_slot_back(slot);
        } else {
            self.cache_slot(slot);
        }
    }

    /// Whether a slot is held once and no more.
    pub(in super::super) fn is_held_once(&self, slot: SlotId) -> bool {
        self.entries[self.at_slot(slot)].holds == 1
    }

    /// Forgets a snapshot; its slot becomes free as soon as it is not held.
    pub(in super::super) fn forget_snapshot(&mut self, slot: SlotId) {
        let (at, block) = (self.at_slot(slot), self.snapshots.block(slot));
        self.snapshots.behind[block as usize] = None;
        self.snapshots.known -= 1;
        self.entries[at].place = NOWHERE;
        if self.entries[at].holds == 0 {
            self.uncache_slot(slot);
            self.pages.extents_mut().give_slot_back(slot);
        }
    }

    /// Makes a snapshot the newest of all that is cached; nothing if it is held.
    pub(in super::super) fn renew_snapshot(&mut self, slot: SlotId) {
        if self.entries[self.at_slot(slot)].holds == 0 {
            self.uncache_slot(slot);
            self.cache_slot(slot);
        }
    }

    /// Renews a cached snapshot at the cost of one of its chances; returns whether it had one.
    pub(in super::super) fn pass_over(&mut self, slot: SlotId) -> bool {
        let chances = &mut self.snapshots.slots[slot as usize].chances;
        if *chances == 0 {
            return false;
        }
        *chances -= 1;
        self.renew_snapshot(slot);
        true
    }

    /// The tree puts `block` in the place of another, whose snapshot follows `block` from now on.
    pub(in super::super) fn move_snapshot(&mut self, from: BlockId, block: BlockId) {
        if let Some(slot) = self.snapshot_behind(from) {
            self.snapshots.behind[from as usize] = None;
            self.snapshots.behind[block as usize] = Some(slot);
            self.snapshots.slots[slot as usize].block = block;
        }
    }

    /// The extent that costs least to empty for a state, if sequences do not hold pages of all.
    pub(in super::super) fn oldest_extent(&self) -> Option<SlotId> {
        self.pages.extents().oldest()
    }

    /// Whether an extent has a cached snapshot.
    pub(in super::super) fn is_snapshot(&self, extent: SlotId) -> bool {
        self.entries[self.at_slot(extent)].place == KNOWN
    }

    /// The pages of an extent.
    pub(in super::super) fn pages_of_extent(&self, extent: SlotId) -> Range<PageId> {
        self.pages.extents().pages(extent)
    }

    /// The block that a page is of, and the group. Only where there are states.
    pub(in super::super) fn owner(&self, page: PageId) -> Option<(BlockId, usize)> {
        self.pages.owner(page)
    }

    fn cache_slot(&mut self, slot: SlotId) {
        self.link_newest(self.at_slot(slot));
        self.cached += self.snapshots.pages;
        self.pages.extents_mut().cache_slot(slot);
    }

    fn uncache_slot(&mut self, slot: SlotId) {
        self.unlink(self.at_slot(slot));
        self.cached -= self.snapshots.pages;
        self.pages.extents_mut().uncache_slot(slot);
    }

    pub(super) fn at_slot(&self, slot: SlotId) -> usize {
        self.num_blocks * self.groups + slot as usize
    }
}
