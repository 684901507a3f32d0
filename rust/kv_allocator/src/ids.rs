//! The numbers by which blocks, pages and slots are named.

/// Names a block: some tokens of a sequence, and their KV in all groups.
pub type BlockId = u32;

/// Names a page: its index in the KV cache.
pub type PageId = u32;

/// Names an extent, and the slot that it can be.
pub type SlotId = u32;
