//! The rows of a step: granted, written, and in flight.

use std::ops::Range;

use super::sequence_table::RequestId;
use pyengine_kv_allocator::{BlockId, KvAllocator, SlotId};
use pyengine_speculation::Segments;

/// A sequence that runs; sorted by `order`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runner {
    pub order: (i32, u64),
    pub slot: u32,
}

/// A row of the step that is being planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub slot: u32,
    pub count: u32,
    /// The last of those are drafts: from `first_draft` on of the drafts that were proposed, or the device's to fill in.
    pub drafts: u32,
    pub first_draft: u32,
    pub on_device: bool,
    pub segments: Segments,
}

impl Grant {
    pub fn new(slot: u32, count: u32) -> Self {
        Self { slot, count, drafts: 0, first_draft: 0, on_device: false, segments: Segments::default() }
    }
}

/// A row that is being written, as features see it.
pub(crate) struct StepRow<'a> {
    pub slot: u32,
    pub generation: u32,
    pub request: RequestId,
    /// Its tokens among the step's.
    pub tokens: Range<usize>,
    /// Where the first of them is in its sequence.
    pub start: u32,
    /// The known tokens of its sequence.
    pub known: &'a [u32],
    /// It computes the last token of its sequence.
    pub completes: bool,
    /// What it samples from, if it samples.
    pub sampling: Option<SampledRow>,
}

/// The part of a row that samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledRow {
    /// The first of its logits: there is one, and one more for each draft.
    pub first_logit: usize,
    /// The first of its drafts among the step's tokens.
    pub first_draft: usize,
    pub drafts: usize,
}

impl SampledRow {
    /// Its logits.
    pub fn logits(&self) -> Range<usize> {
        self.first_logit..self.first_logit + self.drafts + 1
    }
}

/// A row of a step in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRecord {
    pub slot: u32,
    pub generation: u32,
    pub count: u32,
    /// The last of them are drafts, proposed by the sources in `segments`.
    pub drafts: u32,
    pub segments: Segments,
    /// It computes the last token of its sequence, behind which a token is sampled, or the request is over.
    pub completes: bool,
    pub samples: bool,
    /// It fills up blocks that are in the prefix tree already, or may come to be while it is in flight.
    pub publishes: bool,
}

/// The results of a row that belong to a feature.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// The row's place in its step.
    pub row: usize,
    /// The feature's place in the list of all.
    pub feature: usize,
    /// Where the feature has them, in its own fields of the step's results.
    pub results: Range<usize>,
}

/// A step's drafts, for the control.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DraftRecord {
    /// Planned while drafts were wanted.
    pub speculative: bool,
    /// Tokens that the draft model drafted one after the other.
    pub device: usize,
    /// Tokens of its sequences that the draft model had not computed before.
    pub caught_up: usize,
}

/// A step in flight.
#[derive(Default)]
pub(crate) struct StepRecord {
    /// Counted from 1.
    pub number: u64,
    pub rows: Vec<RowRecord>,
    /// By row, and of a row in the order of the features.
    pub outputs: Vec<Output>,
    /// Blocks in the prefix tree that it fills up, or steps before it that were in flight.
    pub published: Vec<BlockId>,
    /// Snapshots of states that it takes.
    pub snapshots: Vec<SlotId>,
    pub num_sampled: usize,
    pub num_logits: usize,
    pub prefills: usize,
    pub prompt_tokens: usize,
    /// When it was planned.
    pub planned_ns: u64,
    /// Facts of the step for the control of drafts.
    pub drafts: DraftRecord,
}

impl StepRecord {
    /// Makes the tree forget what the step was to compute.
    pub fn forget(&self, kv: &mut KvAllocator) {
        kv.forget(&self.published);
        self.snapshots.iter().for_each(|&slot| kv.forget_snapshot(slot));
    }
}

/// When a device worked on a step, in nanoseconds of a clock that is its own: those of steps do not overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// It began.
    pub start_ns: u64,
    /// From when to when in between it waited for the host: for masks or penalties.
    pub waited: (u64, u64),
    /// It was over.
    pub end_ns: u64,
}

impl DeviceTimes {
    /// The times in a step's results; `None` where the device does not tell them.
    pub fn read(results: &[i64]) -> Option<Self> {
        match *results {
            [start, from, to, end] if end > 0 => {
                Some(Self { start_ns: start as u64, waited: (from as u64, to as u64), end_ns: end as u64 })
            }
            _ => None,
        }
    }

    /// How long it waited in between.
    pub fn waited_ns(&self) -> u64 {
        self.waited.1.saturating_sub(self.waited.0)
    }

    /// How long it worked.
    pub fn busy_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns).saturating_sub(self.waited_ns())
    }
}
