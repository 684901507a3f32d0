//! One step: which rows it has, how they are written, and what becomes of the tokens that come back.
//!
//! ```text
//!   plan: rows are granted ──► fill: they are written ──► in flight ──► commit: their tokens are appended
//!          from running sequences                                        └─► finish, preempt: sequences leave
//! ```

pub mod buffers;
mod commit;
pub(super) mod fill;
mod finish;
mod padding;
mod placement;
pub(super) mod plan;
pub(super) mod sequence_table;
mod sharing;

use std::collections::VecDeque;

use super::features::drafts::DraftRecord;
pub(super) use placement::{Entry, Placement};
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::BlockId;
use pyengine_speculation::Segments;
use sequence_table::SequenceTable;

/// A sequence that runs; sorted by `order`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runner {
    pub order: (i32, u64),
    pub slot: u32,
}

/// A row of the step that is being planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub slot: u32,
    pub count: u32,
    // The last of those are drafts: from `first_draft` on of the drafts that were proposed, or the device's to fill in.
    pub drafts: u32,
    pub first_draft: u32,
    pub on_device: bool,
    pub segments: Segments,
}

impl Grant {
    fn new(slot: u32, count: u32) -> Self {
        Self { slot, count, drafts: 0, first_draft: 0, on_device: false, segments: Segments::default() }
    }
}

/// A row of a step in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRecord {
    pub slot: u32,
    pub generation: u32,
    pub count: u32,
    // The last of them are drafts, proposed by the sources in `segments`.
    pub drafts: u32,
    pub segments: Segments,
    // It computes the last token of its sequence, behind which a token is sampled, or the request is over.
    pub completes: bool,
    pub samples: bool,
    pub pooled: bool,
    // So many of the step's logits of prompts are its own.
    pub scored: u32,
    // It fills up blocks that are in the prefix tree already.
    pub publishes: bool,
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

/// A step in flight.
#[derive(Default)]
pub(super) struct StepRecord {
    // Counted from 1.
    pub number: u64,
    pub rows: Vec<RowRecord>,
    // Blocks of prompts that it fills up.
    pub published: Vec<BlockId>,
    pub num_sampled: usize,
    pub num_logits: usize,
    pub prefills: usize,
    pub prompt_tokens: usize,
    // When it was planned.
    pub planned_ns: u64,
    /// The most log-probabilities that a row wants.
    pub logprobs: Option<u8>,
    /// Facts of the step for the control of drafts.
    pub drafts: DraftRecord,
}

/// The running sequences, the step that is being planned, and the steps in flight.
///
/// O(sequences) of memory, besides the steps in flight, whose records are used again.
pub(super) struct Steps {
    block_size: usize,
    /// The device moves rows that follow drafts in flight, and so rows may follow them.
    moves: bool,
    short_context: usize,
    table: SequenceTable,
    running: Vec<Runner>,
    in_flight: VecDeque<StepRecord>,
    spare: Vec<StepRecord>,
    /// Steps that were planned.
    number: u64,
    decodes: Vec<Grant>,
    prefills: Vec<Grant>,
    /// Blocks that the prefills of the step that is being planned fill up.
    published: Vec<BlockId>,
    /// Scratch of `catch_up`.
    found: Vec<BlockId>,
}

impl Steps {
    /// No sequences, and room for `max_sequences`.
    pub fn new(max_sequences: usize, block_size: usize, short_context: usize) -> Self {
        Self {
            block_size,
            moves: false,
            short_context,
            table: SequenceTable::new(max_sequences),
            running: Vec::with_capacity(max_sequences),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            number: 0,
            decodes: Vec::with_capacity(max_sequences),
            prefills: Vec::with_capacity(max_sequences),
            published: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Lets rows of sequences that enter from now on follow drafts in flight, or not.
    pub fn set_moves(&mut self, moves: bool) {
        self.moves = moves;
    }

    /// Whether rows may follow drafts in flight.
    pub fn moves(&self) -> bool {
        self.moves
    }

    pub fn table(&self) -> &SequenceTable {
        &self.table
    }

    /// The running sequences, in the order in which they get blocks and tokens.
    pub fn running(&self) -> &[Runner] {
        &self.running
    }

    /// The steps in flight, the oldest first.
    pub fn in_flight(&self) -> &VecDeque<StepRecord> {
        &self.in_flight
    }

    /// Rows of the step that is being planned, or was last: those that decode.
    pub fn decodes(&self) -> &[Grant] {
        &self.decodes
    }

    /// And those that compute a prompt.
    pub fn prefills(&self) -> &[Grant] {
        &self.prefills
    }

    /// Whether the step that is being planned has no rows.
    pub fn is_empty(&self) -> bool {
        self.decodes.is_empty() && self.prefills.is_empty()
    }

    /// How many steps were planned.
    pub fn planned(&self) -> u64 {
        self.number
    }

    /// A record with the number of the step that is being planned.
    pub fn record(&mut self, now_ns: u64) -> StepRecord {
        self.number += 1;
        let mut record = self.spare.pop().unwrap_or_default();
        record.number = self.number;
        record.prefills = self.prefills.len();
        record.prompt_tokens = self.prefills.iter().map(|grant| grant.count as usize).sum();
        record.planned_ns = now_ns;
        std::mem::swap(&mut record.published, &mut self.published);
        record
    }

    /// A step is in flight from now on.
    pub fn launch(&mut self, record: StepRecord) {
        self.in_flight.push_back(record);
    }

    /// The oldest step in flight, which is in flight no more.
    pub fn land(&mut self) -> Result<StepRecord> {
        self.in_flight.pop_front().ok_or_else(|| Error::InvalidArgument("no step is in flight".into()))
    }

    /// The oldest step is in flight after all.
    fn put_back(&mut self, record: StepRecord) {
        self.in_flight.push_front(record);
    }

    /// Keeps a record's memory for a later step. Returns when the oldest step in flight was planned, 0 if there is none.
    pub fn recycle(&mut self, mut record: StepRecord) -> u64 {
        record.rows.clear();
        record.published.clear();
        self.spare.push(record);
        self.in_flight.front().map_or(0, |oldest| oldest.planned_ns)
    }

    /// Checks that table, running sequences and steps in flight agree, in O(all of them); names what does not.
    pub fn check(&self) -> Result<()> {
        holds(self.running.len() == self.table.owned(), "running sequences are those in the table")?;
        holds(self.running.is_sorted_by_key(|runner| runner.order), "running sequences are in order")?;
        for &Runner { slot, .. } in &self.running {
            let at = slot as usize;
            let progress = &self.table.progress[at];
            let blocks = self.table.held[at].blocks().len();
            holds(progress.known as usize == self.table.tokens[at].len(), "known tokens are the tokens")?;
            holds(progress.committed <= progress.planned, "what is committed was planned")?;
            holds(
                progress.planned <= progress.reach() - u32::from(progress.drafted > 0)
                    && progress.reach() <= progress.limit,
                "no overshoot",
            )?;
            holds(progress.committed < progress.known, "the last known token has no committed KV")?;
            holds(progress.planned as usize <= blocks * self.block_size, "blocks cover what is planned")?;
            let generation = self.table.generation(slot);
            let rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let live = rows.filter(|row| row.slot == slot && row.generation == generation);
            let (count, sampled) =
                live.fold((0, 0), |sum, row| (sum.0 + row.count, sum.1 + u32::from(row.completes)));
            holds(progress.planned - progress.committed == count, "steps in flight compute what is planned")?;
            holds(
                progress.pending + progress.settled == sampled,
                "steps in flight complete what is pending, or known already",
            )?;
            let rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let live = rows.filter(|row| row.slot == slot && row.generation == generation);
            let drafted: u32 = live.map(|row| row.drafts).sum();
            holds(progress.drafted == drafted, "steps in flight have the drafts")?;
            holds(progress.assumed <= progress.drafted, "drafts that are assumed right are in flight")?;
        }
        Ok(())
    }
}

/// An `Invariant` error unless the condition holds.
pub(super) fn holds(condition: bool, invariant: &str) -> Result<()> {
    match condition {
        true => Ok(()),
        false => Err(Error::Invariant(format!("planner: not so: {invariant}"))),
    }
}
