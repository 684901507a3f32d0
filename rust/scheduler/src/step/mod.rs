//! One step: which rows it has, how they are written, and what becomes of the tokens that come back.
//!
//! ```text
//!   plan: rows are granted ──► fill: they are written ──► in flight ──► commit: their tokens are appended
//!          from running sequences                                        └─► finish, preempt: sequences leave
//! ```

mod admission;
pub mod buffers;
mod commit;
pub mod fields;
mod fill;
pub mod layout;
mod padding;
mod placement;
mod plan;
mod proposer;
mod ranges;
mod room;
pub(super) mod rows;
pub(super) mod sequence_table;
mod sharing;
mod state_rows;
mod states;

use std::collections::VecDeque;

use super::config::PlannerConfig;
use layout::StepLayout;
use proposer::Proposer;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::{BlockId, KvAllocator};
use pyengine_speculation::SpeculationConfig;
use rows::{Grant, Runner, StepRecord};
use sequence_table::SequenceTable;
use states::States;

/// The running sequences, the step that is being planned, and the steps in flight.
///
/// O(sequences) of memory, besides the steps in flight, whose records are used again.
pub(super) struct Steps {
    config: PlannerConfig,
    /// Sequences that run at once.
    concurrency: usize,
    block_size: usize,
    /// Proposes drafts for rows that decode.
    proposer: Proposer,
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
    states: States,
}

impl Steps {
    /// No sequences, which will have their blocks and states in `kv`.
    pub fn new(config: PlannerConfig, layout: &StepLayout, kv: &KvAllocator) -> Self {
        let max_sequences = config.max_sequences;
        Self {
            config,
            concurrency: config.concurrency(layout),
            block_size: kv.block_size(),
            proposer: Proposer::default(),
            table: SequenceTable::new(max_sequences),
            running: Vec::with_capacity(max_sequences),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            number: 0,
            decodes: Vec::with_capacity(max_sequences),
            prefills: Vec::with_capacity(max_sequences),
            published: Vec::new(),
            found: Vec::new(),
            states: States::new(kv, max_sequences, config.snapshot_interval),
        }
    }

    /// Lets rows have drafts.
    pub fn set_speculation(&mut self, config: SpeculationConfig) {
        self.proposer.enable(config, self.config.max_sequences);
    }

    /// Counts of drafts by name.
    pub fn draft_stats(&self) -> Vec<(String, u64)> {
        self.proposer.stats()
    }

    /// What proposes drafts.
    pub fn proposer(&mut self) -> &mut Proposer {
        &mut self.proposer
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
    #[cfg(test)]
    pub fn decodes(&self) -> &[Grant] {
        &self.decodes
    }

    /// And those that compute a prompt.
    #[cfg(test)]
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
        record.outputs.clear();
        record.published.clear();
        record.snapshots.clear();
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
