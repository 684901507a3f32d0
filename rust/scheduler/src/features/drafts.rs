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
//! O(decodes + drafts), and what the grammars take to look at their rows' drafts.

use std::sync::Arc;

use super::grammars::Grammars;
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, RowFeature};
use crate::queue::submit::token_ids;
use crate::step::buffers::{StepBuffers, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::RequestId;
use crate::step::{DeviceTimes, Grant, RowRecord, StepRecord, Steps};
use pyengine_base::error::Result;
use pyengine_messages::{Extension, Submit};
use pyengine_speculation::{
    Length, POSITIONS, Row, Segments, Source, SpeculationConfig, Speculator, StepOutcome,
};
use serde::{Deserialize, Serialize};

/// Tokens of prompts and answers that are indexed in a step, where that was put off.
const TENDED: usize = 256;

/// Predicts the answer in parts: a source of drafts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionExtension {
    /// The predicted answer, token ids as u32 little-endian.
    #[serde(with = "serde_bytes")]
    pub tokens: Vec<u8>,
}

impl Extension for PredictionExtension {
    const TAG: &'static str = "prediction";
}

/// The drafts of a row that decodes: the host's segments, whose tokens begin at `first`, and how many of them, or
/// of the device's, are worth sending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proposal {
    pub segments: Segments,
    pub length: Length,
    pub first: usize,
}

/// A step's drafts, for the control.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DraftRecord {
    /// Planned while drafts were wanted.
    speculative: bool,
    /// Tokens that the draft model drafted one after the other.
    device: usize,
    /// Tokens of its sequences that the draft model had not computed before.
    caught_up: usize,
}

/// A row whose tokens were taken.
pub(crate) struct DraftedRow<'a> {
    pub row: &'a RowRecord,
    pub request: RequestId,
    /// Tokens of its sequence before those that it sampled.
    pub known: u32,
    /// Tokens that it sampled: all but the last equal their drafts.
    pub sampled: usize,
    /// Of those, tokens that its request took.
    pub taken: usize,
}

/// The state of a request where drafts are on.
#[derive(Default)]
struct Answer {
    /// The answer that its client predicts.
    prediction: Option<Arc<[u32]>>,
    /// Draft tokens that were right, and wrong.
    accepted: u32,
    rejected: u32,
}

/// Drafts, where they are on.
#[derive(Default)]
pub(crate) struct Drafts {
    enabled: Option<Box<Enabled>>,
}

/// The proposers and their control, and what they need to know of the steps. O(sequences) of memory.
struct Enabled {
    speculator: Speculator,
    max_draft: usize,
    forced: bool,
    requests: PerRequest<Answer>,
    /// Draft tokens of the step that is being planned, and its rows that decode.
    tokens: Vec<u32>,
    rows: Vec<Row>,
    firsts: Vec<usize>,
    lengths: Vec<Length>,
    ahead: Vec<u32>,
    /// Of the step that is being planned.
    record: DraftRecord,
    /// By slot: so many tokens of the sequence the draft model has surely computed.
    computed: Vec<u32>,
    /// When the device was done with the last step, if it has waited for the host since: nothing else comes between.
    idle_since_ns: Option<u64>,
}

impl Drafts {
    /// Lets rows have drafts, as `config` says, for sequences of so many slots.
    pub fn enable(&mut self, config: SpeculationConfig, max_sequences: usize) {
        self.enabled = Some(Box::new(Enabled {
            max_draft: config.max_draft,
            forced: config.sources.has(Source::Forced),
            speculator: Speculator::new(config, max_sequences),
            requests: PerRequest::default(),
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

    /// A sequence has got its place in the table.
    pub fn open(&mut self, slot: u32, id: RequestId, tokens: &[u32], prompt_length: usize) {
        let Some(enabled) = &mut self.enabled else { return };
        let Some(answer) = enabled.requests.get(id) else { return };
        enabled.computed[slot as usize] = 0;
        enabled.speculator.open(slot, tokens, prompt_length, answer.prediction.clone());
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

    /// Collects what may be drafted for each row that decodes, and how much of it is worth sending. `limit` lowers the
    /// limits of a row with its drafts.
    pub fn propose(
        &mut self,
        steps: &Steps,
        grammars: &mut Grammars,
        mut limit: impl FnMut(&mut Grammars, RequestId, &[u32], &mut DraftLimits),
    ) {
        let Some(enabled) = self.enabled.as_deref_mut() else { return };
        enabled.tokens.clear();
        enabled.rows.clear();
        enabled.firsts.clear();
        enabled.record = DraftRecord { speculative: true, ..DraftRecord::default() };
        if steps.decodes().is_empty() {
            return;
        }
        for grant in steps.decodes() {
            enabled.propose_row(steps, grant.slot, grammars, &mut limit);
        }
        let prefill = steps.prefills().iter().map(|grant| grant.count as usize).sum();
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

    /// Draft tokens of a request that were right, and wrong.
    pub fn counts(&self, id: RequestId) -> (u32, u32) {
        let answer = self.enabled.as_ref().and_then(|enabled| enabled.requests.get(id));
        answer.map_or((0, 0), |answer| (answer.accepted, answer.rejected))
    }

    /// The tokens of a row were taken: its drafts are judged and its sequence goes on with the `new` ones.
    pub fn commit_row(&mut self, row: &DraftedRow<'_>, new: &[u32]) {
        if let Some(enabled) = self.enabled.as_deref_mut() {
            enabled.judge(row);
            enabled.speculator.append(row.row.slot, new);
        }
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
    fn propose_row(
        &mut self,
        steps: &Steps,
        slot: u32,
        grammars: &mut Grammars,
        lower: &mut impl FnMut(&mut Grammars, RequestId, &[u32], &mut DraftLimits),
    ) {
        let at = slot as usize;
        let progress = &steps.table().progress[at];
        let id = steps.table().request[at];
        // The last token of the answer needs no draft after it.
        let most = match steps.table().samples[at] {
            true => self.max_draft.min((progress.limit - progress.reach() - 1) as usize),
            false => 0,
        };
        let first = self.tokens.len();
        let mut segments = Segments::default();
        self.ahead.clear();
        let forced = if self.forced { most } else { 0 };
        if most > 0 && grammars.forced_tokens(id, forced, &mut self.ahead) {
            segments = self.speculator.propose(slot, &self.ahead, most, &mut self.tokens);
        }
        let mut limits = DraftLimits { host: segments.total(), device: true };
        lower(grammars, id, &self.tokens[first..], &mut limits);
        segments.truncate(limits.host);
        self.tokens.truncate(first + segments.total());
        let lacks = (progress.known - 1).saturating_sub(self.computed[at]) as usize;
        let left = (progress.limit - progress.reach()) as usize;
        let device = if limits.device { most } else { 0 };
        self.firsts.push(first);
        self.rows.push(Row { slot, segments, device, lacks, left });
    }

    /// Counts how many drafts of a row were right: all but the last of its sampled tokens equal theirs. Where only the
    /// first `taken` were wanted, those behind are neither right nor wrong.
    fn judge(&mut self, &DraftedRow { row, request, known, sampled, taken }: &DraftedRow<'_>) {
        if row.drafts == 0 {
            return;
        }
        let accepted = taken.min(sampled.saturating_sub(1)) as u32;
        let judged = if taken < sampled { accepted } else { row.drafts };
        if let Some(answer) = self.requests.get_mut(request) {
            answer.accepted += accepted;
            answer.rejected += judged - accepted;
        }
        if row.segments.iter().any(|segment| segment.source == Source::DraftModel) {
            // The last draft was chosen, and not computed.
            self.computed[row.slot as usize] = known + accepted.min(row.drafts - 1);
        }
        let mut segments = row.segments;
        segments.truncate(judged as usize);
        self.speculator.judged(row.slot, &segments, accepted as usize);
    }
}

impl RowFeature for Drafts {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32]) -> Result<()> {
        if let Some(enabled) = &mut self.enabled {
            let predicted: Option<PredictionExtension> = submit.extensions.get()?;
            let prediction = predicted.map(|predicted| token_ids(&predicted.tokens));
            enabled.requests.insert(id, Answer { prediction, ..Answer::default() });
        }
        Ok(())
    }

    fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>) {
        let drafts = if row.on_device { row.drafts } else { 0 };
        out.device_drafts[row.at] = drafts as i32;
        if let Some(enabled) = &mut self.enabled {
            enabled.record.device = enabled.record.device.max(drafts as usize);
        }
    }

    fn end_step(&mut self, header: &mut [i64], record: &mut StepRecord) {
        record.drafts = self.enabled.as_mut().map_or_else(DraftRecord::default, |enabled| {
            // A step that is planned while no drafts are wanted proposes none.
            std::mem::take(&mut enabled.record)
        });
        header[header::MAX_DEVICE_DRAFTS] = record.drafts.device as i64;
    }

    fn leave(&mut self, id: RequestId) {
        if let Some(enabled) = &mut self.enabled {
            enabled.requests.remove(id);
        }
    }
}
