//! How a world is made: sizes of the cache and of a step, limits, and where drafts come from.

use pyengine_kv_allocator::Group;

/// How a world is made.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) block_size: usize,
    /// Pages.
    pub(super) num_blocks: usize,
    pub(super) groups: Vec<Group>,
    pub(super) prefix_cache: bool,
    pub(super) max_sequences: usize,
    pub(super) max_tokens: usize,
    pub(super) max_rows: usize,
    pub(super) max_pages: usize,
    pub(super) max_context: usize,
    pub(super) max_waiting: usize,
    pub(super) prefill_chunk: usize,
    pub(super) prefill_beside_decodes: usize,
    pub(super) depth: usize,
    pub(super) horizon: u32,
    // The source of drafts, and their most tokens.
    pub(super) drafts: Drafts,
    pub(super) max_penalties: usize,
    pub(super) short_context: usize,
    pub(super) snapshot_interval: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Drafts {
    Off,
    // The client's prediction: every fifth token of it is wrong.
    Host(usize),
    // The device's draft model, besides the others or alone.
    Device(usize),
    Model(usize),
}

impl Drafts {
    pub(super) fn most(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Host(most) | Self::Device(most) | Self::Model(most) => most,
        }
    }
}

pub(super) fn roomy() -> Setup {
    Setup {
        block_size: 4,
        num_blocks: 64,
        groups: vec![Group::FULL],
        prefix_cache: true,
        max_sequences: 4,
        max_tokens: 32,
        max_rows: 4,
        max_pages: 64,
        max_context: 200,
        max_waiting: 64,
        prefill_chunk: 0,
        prefill_beside_decodes: 0,
        depth: 1,
        horizon: 64,
        drafts: Drafts::Off,
        max_penalties: 64,
        short_context: 0,
        snapshot_interval: 0,
    }
}
