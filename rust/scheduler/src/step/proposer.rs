//! Drafts in the steps: how many each row gets, and what became of them.
//!
//! ```text
//!   plan     decodes, prefills, admissions ──► drafts from what the step has left: tokens, pages, logits, blocks
//!   commit   how many were right ──► the proposers;  how long the step took ──► their control
//! ```
//!
//! Drafts never take anything from tokens that are certain: no sequence is preempted for them, and no prompt is cut
//! shorter. Drafts of the host follow the last known token, so while they pay, a step is planned only when the one before
//! is committed; that the device waits for it meanwhile counts when it is judged whether they pay.
//! O(decodes + drafts), and what the features take to look at their rows' drafts.

use std::sync::Arc;

use super::rows::{DeviceTimes, DraftRecord, Grant, RowRecord, StepRecord};
use super::sequence_table::SequenceTable;
use crate::features::Features;
use crate::features::row_feature::DraftLimits;
use pyengine_speculation::{
    Length, POSITIONS, Row, Segments, Source, SpeculationConfig, Speculator, StepOutcome,
};

/// Tokens of prompts and answers that are indexed in a step, where that was put off.
const TENDED: usize = 256;

/// The drafts of a row that decodes: the host's segments, whose tokens begin at `first`, and how many of them, or
/// of the device's, are worth sending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proposal {
    pub segments: Segments,
    pub length: Length,
    pub first: usize,
}

/// A row whose tokens were taken.
pub(crate) struct DraftedRow<'a> {
    pub row: &'a RowRecord,
    /// Tokens of its sequence before those that it sampled.
    pub known: u32,
    /// Tokens that it sampled: all but the last equal their drafts.
    pub sampled: usize,
    /// Of those, tokens that its request took.
    pub taken: usize,
}

/// Proposes drafts, where they are on.
#[derive(Default)]
pub(crate) struct Proposer {
    enabled: Option<Box<Enabled>>,
}

/// The proposers and their control, and what they need to know of the steps. O(sequences) of memory.
struct Enabled {
    speculator: Speculator,
    max_draft: usize,
    forced: bool,
    /// Draft tokens of the step that is being planned, and its rows that decode.
    tokens: Vec<u32>,
    rows: Vec<Row>,
    firsts: Vec<usize>,
    lengths: Vec<Length>,
    ahead: Vec<u32>,
    /// Of the step that is being planned.
    record: DraftRecord,
    /// By slot: how many tokens of the sequence the draft model has surely computed.
    computed: Vec<u32>,
    /// When the device was done with the last step, if it has waited for the host since: nothing else comes between.
    idle_since_ns: Option<u64>,
}

impl Proposer {
    /// Lets rows have drafts, as `config` says, for sequences in `slots` slots.
    pub fn enable(&mut self, config: SpeculationConfig, max_sequences: usize) {
        self.enabled = Some(Box::new(Enabled {
            max_draft: config.max_draft,
            forced: config.sources.has(Source::Forced),
            speculator: Speculator::new(config, max_sequences),
            tokens: Vec::new(),
            rows: Vec::new(),
            firsts: Vec::new(),
            lengths: Vec::new(),
            ahead: Vec::new(),
            record: DraftRecord::default(),
            computed: vec![0; max_sequences],
            idle_since_ns: None,
        }));
    }

    /// Whether the next step should have drafts.
    pub fn wanted(&self) -> bool {
        self.enabled.as_ref().is_some_and(|enabled| enabled.speculator.active())
    }

    /// A sequence has got its place in the table; its answer is expected to repeat parts of `prediction`.
    pub fn open(&mut self, slot: u32, tokens: &[u32], prompt_length: usize, prediction: Option<Arc<[u32]>>) {
        let Some(enabled) = &mut self.enabled else { return };
        enabled.computed[slot as usize] = 0;
        enabled.speculator.open(slot, tokens, prompt_length, prediction);
    }

    /// A sequence has left the table; `finished` says that its answer is whole.
    pub fn close(&mut self, slot: u32, finished: bool) {
        if let Some(enabled) = &mut self.enabled {
            enabled.speculator.close(slot, finished);
            enabled.idle_since_ns = None;
        }
    }

    /// Nothing can be planned for a while; the device's idle time until then is not charged to drafting.
    pub fn pause(&mut self) {
        if let Some(enabled) = &mut self.enabled {
            enabled.idle_since_ns = None;
        }
    }

    /// Collects what may be drafted for each row that decodes, and how much of it is worth sending.
    pub fn propose(
        &mut self,
        table: &SequenceTable,
        decodes: &[Grant],
        prefills: &[Grant],
        features: &mut Features,
    ) {
        let Some(enabled) = self.enabled.as_deref_mut() else { return };
        enabled.tokens.clear();
        enabled.rows.clear();
        enabled.firsts.clear();
        enabled.record = DraftRecord { speculative: true, ..DraftRecord::default() };
        if decodes.is_empty() {
            return;
        }
        for grant in decodes {
            enabled.propose_row(table, grant.slot, features);
        }
        let prefill = prefills.iter().map(|grant| grant.count as usize).sum();
        enabled.speculator.plan_lengths(&enabled.rows, prefill, &mut enabled.lengths);
    }

    /// The drafts of a row, by its place among the rows that decode. Only after [`propose`](Self::propose).
    pub fn proposal(&self, at: usize) -> Proposal {
        let nothing = Proposal { segments: Segments::default(), length: Length::default(), first: 0 };
        self.enabled.as_ref().map_or(nothing, |enabled| Proposal {
            segments: enabled.rows[at].segments,
            length: enabled.lengths[at],
            first: enabled.firsts[at],
        })
    }

    /// A row got its drafts, behind `known` tokens.
    pub fn granted(&mut self, grant: &Grant, known: u32) {
        let Some(enabled) = self.enabled.as_deref_mut() else { return };
        if grant.on_device && grant.drafts > 0 {
            let computed = &mut enabled.computed[grant.slot as usize];
            enabled.record.caught_up += (known - 1).saturating_sub(*computed) as usize;
            *computed = known;
        }
    }

    /// The draft tokens that were proposed, of all rows.
    pub fn tokens(&self) -> &[u32] {
        self.enabled.as_ref().map_or(&[], |enabled| &enabled.tokens)
    }

    /// Every row is written, in which the device drafts `device` tokens one after the other; returns what is to be known
    /// of the step. One that is planned while no drafts are wanted proposes none.
    pub fn end_step(&mut self, device: usize) -> DraftRecord {
        let record = self.enabled.as_mut().map(|enabled| std::mem::take(&mut enabled.record));
        record.map_or_else(DraftRecord::default, |record| DraftRecord { device, ..record })
    }

    /// The tokens of a row were taken: its drafts are judged and its sequence goes on with the `new` ones. Returns how many
    /// drafts were right, and wrong.
    pub fn commit_row(&mut self, row: &DraftedRow<'_>, new: &[u32]) -> (u32, u32) {
        let Some(enabled) = self.enabled.as_deref_mut() else { return (0, 0) };
        let judged = enabled.judge(row);
        enabled.speculator.append(row.row.slot, new);
        judged
    }

    /// Tells the control what the device reports of a step, which had `accepted` right drafts and with which some requests
    /// `ended`. After an end it waits for more than the next plan: the answer is sent, and the next request comes.
    pub fn observe(
        &mut self,
        record: &StepRecord,
        accepted: usize,
        ended: usize,
        device: Option<&DeviceTimes>,
    ) {
        let Some(enabled) = self.enabled.as_deref_mut() else { return };
        let idle_since = enabled.idle_since_ns.take();
        enabled.idle_since_ns = device.filter(|_| ended == 0).map(|device| device.end_ns);
        let before = |device: &DeviceTimes| Some(device.start_ns.saturating_sub(idle_since?));
        let idle = device.and_then(|device| Some(before(device)? + device.waited_ns()));
        enabled.speculator.observe(&StepOutcome {
            rows: record.rows.len() - record.prefills,
            prompt_tokens: record.prompt_tokens,
            drafted: record.num_logits - record.num_sampled,
            accepted,
            device_iterations: record.drafts.device,
            caught_up: record.drafts.caught_up,
            speculative: record.drafts.speculative,
            busy_ns: device.map_or(0, DeviceTimes::busy_ns),
            idle_ns: idle,
        });
        enabled.speculator.tend(TENDED);
    }

    /// Whether the device's idle time before the next step counts.
    #[cfg(test)]
    pub fn counts_idle_time(&self) -> bool {
        self.enabled.as_ref().is_some_and(|enabled| enabled.idle_since_ns.is_some())
    }

    /// Counts of drafts by name, and what holds now: `drafted_<source>` and `accepted_<source>`, the same with
    /// `_<position>`, whether drafts pay.
    pub fn stats(&self) -> Vec<(String, u64)> {
        let Some(enabled) = &self.enabled else { return Vec::new() };
        let speculation = enabled.speculator.stats();
        let mut stats = vec![("speculation_active".to_owned(), u64::from(speculation.active))];
        for &source in Source::ALL {
            let (name, at) = (source.name(), source as usize);
            stats.push((format!("drafted_{name}"), speculation.proposed[at]));
            stats.push((format!("accepted_{name}"), speculation.accepted[at]));
            for position in 0..POSITIONS {
                let (drafted, accepted) = speculation.by_position[at][position];
                if drafted > 0 {
                    stats.push((format!("drafted_{name}_{position}"), drafted));
                    stats.push((format!("accepted_{name}_{position}"), accepted));
                }
            }
        }
        stats
    }
}

impl Enabled {
    fn propose_row(&mut self, table: &SequenceTable, slot: u32, features: &mut Features) {
        let at = slot as usize;
        let (progress, id) = (&table.progress[at], table.request[at]);
        // The last token of the answer needs no draft after it.
        let most = match table.samples[at] {
            true => self.max_draft.min((progress.limit - progress.reach() - 1) as usize),
            false => 0,
        };
        let first = self.tokens.len();
        let mut segments = Segments::default();
        self.ahead.clear();
        let forced = if self.forced { most } else { 0 };
        if most > 0 && features.forced_tokens(id, forced, &mut self.ahead) {
            segments = self.speculator.propose(slot, &self.ahead, most, &mut self.tokens);
        }
        let mut limits = DraftLimits { host: segments.total(), device: true };
        features.limit_drafts(id, &self.tokens[first..], &mut limits);
        segments.truncate(limits.host);
        self.tokens.truncate(first + segments.total());
        let lacks = (progress.known - 1).saturating_sub(self.computed[at]) as usize;
        let left = (progress.limit - progress.reach()) as usize;
        let device = if limits.device { most } else { 0 };
        self.firsts.push(first);
        self.rows.push(Row { slot, segments, device, lacks, left });
    }

    /// Counts how many drafts of a row were right: all but the last of its sampled tokens equal theirs. Where only the
    /// first `taken` were wanted, those behind are neither right nor wrong. Returns how many were right, and wrong.
    fn judge(&mut self, &DraftedRow { row, known, sampled, taken }: &DraftedRow<'_>) -> (u32, u32) {
        if row.drafts == 0 {
            return (0, 0);
        }
        let accepted = taken.min(sampled.saturating_sub(1)) as u32;
        let judged = if taken < sampled { accepted } else { row.drafts };
        if row.segments.iter().any(|segment| segment.source == Source::DraftModel) {
            // The last draft was chosen, and not computed.
            self.computed[row.slot as usize] = known + accepted.min(row.drafts - 1);
        }
        let mut segments = row.segments;
        segments.truncate(judged as usize);
        self.speculator.judged(row.slot, &segments, accepted as usize);
        (accepted, judged - accepted)
    }
}
