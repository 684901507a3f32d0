//! Which block the snapshot in each slot follows.

use super::super::ids::{BlockId, SlotId};

/// The place of a slot that is a snapshot's.
pub(super) const KNOWN: u32 = 0;

/// Which block each snapshot follows.
pub(super) struct Snapshots {
    /// Pages of a slot, 0 where no layer has a state.
    pub pages: usize,
    /// By block. Empty without states.
    pub behind: Vec<Option<SlotId>>,
    /// By slot.
    pub slots: Vec<Snapshot>,
    /// How many slots are snapshots'.
    pub known: usize,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Snapshot {
    /// The block that it follows; meaningless where the slot is no snapshot's.
    pub block: BlockId,
    /// How often it is still passed over.
    pub chances: u8,
}

impl Snapshots {
    /// None, for `slots` slots of `pages` pages.
    pub(super) fn new(num_blocks: usize, slots: usize, pages: usize) -> Self {
        let behind = if slots == 0 { Vec::new() } else { vec![None; num_blocks] };
        Self { pages, behind, slots: vec![Snapshot::default(); slots], known: 0 }
    }

    /// The block that the snapshot in `slot` follows.
    pub(super) fn block(&self, slot: SlotId) -> BlockId {
        self.slots[slot as usize].block
    }
}
