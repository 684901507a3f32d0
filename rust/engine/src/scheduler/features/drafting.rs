//! What the planner keeps of drafts from step to step; what it does with them is in [`drafts`](super::drafts).
//! O(sequences) of memory, allocated once.

use crate::speculate::{Length, Row, SpeculationConfig, Speculator};

/// The proposers and their control, and what only the planner knows.
pub(in crate::scheduler) struct Drafting {
    pub speculator: Speculator,
    pub max_draft: usize,
    pub forced: bool,
    // Scratch of `grant_drafts`.
    pub rows: Vec<Row>,
    pub firsts: Vec<usize>,
    pub lengths: Vec<Length>,
    pub ahead: Vec<u32>,
    /// By slot: so many tokens of the sequence the draft model has surely computed.
    pub computed: Vec<u32>,
    /// When the last step was committed, if the next one's time begins there: nothing else comes between.
    pub since_ns: Option<u64>,
}

impl Drafting {
    /// Drafts as `config` says, for sequences of so many slots.
    pub fn new(config: SpeculationConfig, max_sequences: usize) -> Self {
        Self {
            max_draft: config.max_draft,
            forced: config.forced,
            speculator: Speculator::new(config, max_sequences),
            rows: Vec::new(),
            firsts: Vec::new(),
            lengths: Vec::new(),
            ahead: Vec::new(),
            computed: vec![0; max_sequences],
            since_ns: None,
        }
    }
}
