//! Drafts of what may come next, and how long they should be.
//!
//! ```text
//!                 tokens that come                       step's rows and drafts        measured steps
//!                       │                                         │                          │
//!  slot ─► Sequence: n-gram, suffix, prediction ─► propose ─► plan_lengths ◄── Control: model of time, on or off
//!               └─ judged by the tokens that come ─► Acceptance ──┘
//! ```
//!
//! A draft changes no token: it only says where the device may look ahead. One [`Speculator`] serves one planner
//! on its thread. A token costs a microsecond or so; a draft as much. Nothing here allocates once its buffers have
//! grown, but for the indices of longer and longer texts.

mod acceptance;
mod automaton;
mod chunks;
mod control;
mod cost;
mod draft;
mod edges;
mod history;
mod lengths;
mod ngram;
mod prediction;
mod sequence;
mod suffix;

use std::sync::Arc;

pub use control::StepOutcome;
pub use draft::{SOURCES, Segment, Segments, Source};
pub use lengths::Length;

use acceptance::Acceptance;
use control::Control;
use history::History;
use lengths::{Chooser, Offers};
use sequence::Sequence;

/// Positions of a draft that [`Stats`] tells apart; the last stands for all beyond.
pub const POSITIONS: usize = 16;

/// Tokens of a prompt that are indexed when it is opened; the rest follows, with each token and in
/// [`Speculator::tend`].
const INDEXED_AT_ONCE: usize = 2048;

/// Tokens of outputs that wait which are taken into the history when a sequence is opened.
const REMEMBERED_AT_ONCE: usize = 1024;

/// Tokens that are indexed with each token that comes, as long as some are put off.
const INDEXED_PER_TOKEN: usize = 16;

/// What may be proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// What followed the same few tokens earlier in the request.
    pub ngram: bool,
    /// What followed the longest known suffix, in the request or in its tenant's recent outputs.
    pub suffix: bool,
    /// There is a draft model on the device.
    pub draft_model: bool,
    /// What a grammar forces.
    pub forced: bool,
    /// The output that a client predicts.
    pub prediction: bool,
    /// Most draft tokens of a row.
    pub max_draft: usize,
    /// Most tokens of outputs of all tenants that are remembered; each takes 40 to 70 bytes.
    pub history_tokens: usize,
    /// Lengths follow from measurements; otherwise they are always the greatest, for tests.
    pub adaptive: bool,
}

/// What may be drafted for a row of a step that decodes.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Whose it is.
    pub slot: u32,
    /// What the host proposed for it.
    pub segments: Segments,
    /// Most tokens that the device's draft model may draft for it, after forced ones; 0: it cannot.
    pub device: usize,
}

/// Counts since the beginning, and what holds now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Draft tokens that were verified, by source.
    pub proposed: [u64; SOURCES],
    /// Those that were accepted, by source.
    pub accepted: [u64; SOURCES],
    /// Draft tokens by source and position in the row's draft: verified after accepted ones, and accepted.
    pub by_position: [[(u64, u64); POSITIONS]; SOURCES],
    /// Whether steps carry drafts.
    pub active: bool,
    /// Draft tokens of a row, over the last steps that were planned with drafts.
    pub mean_length: f32,
    /// Tokens of remembered outputs.
    pub history_tokens: usize,
    /// Bytes that they take.
    pub history_bytes: usize,
}

/// Proposes drafts for all sequences of a planner and decides their lengths.
pub struct Speculator {
    config: SpeculationConfig,
    sequences: Vec<Sequence>,
    history: History,
    acceptance: Acceptance,
    control: Control,
    stats: Stats,
    offers: Offers,
    draft: Vec<u32>,
    scratch: Vec<u32>,
    steps: u64,
    /// The slot whose prompt is indexed next by [`tend`](Self::tend).
    tended: usize,
}

impl Speculator {
    /// For sequences in slots below `max_sequences`.
    pub fn new(config: SpeculationConfig, max_sequences: usize) -> Self {
        Self {
            history: History::new(if config.suffix { config.history_tokens } else { 0 }),
            control: Control::new(config.draft_model || config.forced),
            config,
            sequences: std::iter::repeat_with(Sequence::default).take(max_sequences).collect(),
            acceptance: Acceptance::default(),
            stats: Stats::default(),
            offers: Offers::default(),
            draft: Vec::new(),
            scratch: Vec::new(),
            steps: 0,
            tended: 0,
        }
    }

    /// A sequence begins in a slot, or goes on after preemption: all its tokens, of which `prompt_length` are the
    /// prompt. What was in the slot is forgotten.
    ///
    /// # Panics
    /// If the slot is not below `max_sequences`, here and below.
    pub fn open(
        &mut self,
        slot: u32,
        tenant: u64,
        tokens: &[u32],
        prompt_length: usize,
        prediction: Option<Arc<[u32]>>,
    ) {
        self.history.touch(tenant);
        self.history.ingest(REMEMBERED_AT_ONCE);
        let sequence = &mut self.sequences[slot as usize];
        sequence.open(&self.config, &self.history, tenant, tokens, prompt_length, prediction);
        sequence.index(&self.config, INDEXED_AT_ONCE);
    }

    /// Committed tokens of a sequence, in order. Tokens for a slot in which none is open are ignored.
    pub fn append(&mut self, slot: u32, tokens: &[u32]) {
        let active = self.active();
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return;
        }
        for &token in tokens {
            sequence.append(&self.history, &self.config, token, &mut self.acceptance);
        }
        sequence.index(&self.config, INDEXED_PER_TOKEN * tokens.len());
        if !active && sequence.wants_shadow() {
            // So that it is seen when drafts would pay, without sending any.
            self.draft.clear();
            sequence.propose(
                &self.config,
                &self.history,
                &self.acceptance,
                &[],
                self.config.max_draft,
                &mut self.draft,
                &mut self.scratch,
            );
        }
        self.history.ingest(2 * tokens.len());
    }

    /// A sequence ends or is preempted. `remember`: its output joins its tenant's history.
    pub fn close(&mut self, slot: u32, remember: bool) {
        let sequence = &mut self.sequences[slot as usize];
        if sequence.open && remember && self.config.suffix {
            self.history.remember(sequence.tenant, sequence.output());
        }
        sequence.clear();
    }

    /// Does work that was put off, indexing prompts and outputs: at most `budget` tokens. To be called once a
    /// step, while the device runs.
    pub fn tend(&mut self, budget: usize) {
        let mut left = budget;
        for _ in 0..self.sequences.len() {
            let sequence = &mut self.sequences[self.tended];
            left -= sequence.index(&self.config, left);
            if sequence.behind() > 0 {
                break;
            }
            self.tended = (self.tended + 1) % self.sequences.len();
        }
        self.history.ingest(left);
    }

    /// Appends a draft for a sequence, at most `limit` tokens: `forced` ones from a grammar first, then those of the
    /// best source by expected gain. Says who proposed what.
    pub fn propose(&mut self, slot: u32, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Segments {
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return Segments::default();
        }
        let forced = if self.config.forced { forced } else { &[] };
        let limit = limit.min(self.config.max_draft);
        let (config, history, acceptance) = (&self.config, &self.history, &self.acceptance);
        sequence.propose(config, history, acceptance, forced, limit, draft, &mut self.scratch)
    }

    /// What verification said of a row's draft: the first `accepted` tokens were right. `segments` are those that
    /// were sent (see [`Segments::truncate`] and [`Segments::push_device`]).
    pub fn judged(&mut self, slot: u32, segments: &Segments, accepted: usize) {
        for (source, proposed, accepted) in segments.split(accepted) {
            self.stats.proposed[source as usize] += proposed as u64;
            self.stats.accepted[source as usize] += accepted as u64;
        }
        let reached = segments.positions().take(accepted.saturating_add(1)).enumerate();
        for (at, (segment, position)) in reached {
            let count = &mut self.stats.by_position[segment.source as usize][at.min(POSITIONS - 1)];
            *count = (count.0 + 1, count.1 + u64::from(at < accepted));
            let sequence = &mut self.sequences[slot as usize];
            // The host's drafts are judged by the tokens that come, whether they were sent or not.
            if segment.source == Source::DraftModel {
                self.acceptance.judge(&mut sequence.personal, segment, position, at < accepted);
            }
        }
    }

    /// Whether the next step should carry drafts at all. If not, the planner need not wait for the tokens of the
    /// last step.
    pub fn active(&self) -> bool {
        let config = &self.config;
        let any = config.ngram || config.suffix || config.draft_model || config.forced || config.prediction;
        any && config.max_draft > 0 && (!config.adaptive || self.control.active())
    }

    /// Decides how many draft tokens each row of a step gets: `lengths` in the order of `rows`. All rows that decode
    /// belong in it, those without drafts too. With `prefill_tokens` in the step only what is likely is sent, since
    /// a draft token then costs as much as one of the prompt.
    pub fn plan_lengths(&mut self, rows: &[Row], prefill_tokens: usize, lengths: &mut Vec<Length>) {
        lengths.clear();
        self.offers.clear();
        for row in rows {
            let device = if self.config.draft_model { row.device.min(self.config.max_draft) } else { 0 };
            let personal = &self.sequences[row.slot as usize].personal;
            offer(&mut self.offers, &self.acceptance, personal, &row.segments, device, self.config.max_draft);
        }
        if !self.config.adaptive {
            Chooser::everything(&self.offers, lengths);
        } else if prefill_tokens > 0 {
            Chooser::likely(&self.offers, lengths);
        } else if !rows.is_empty() {
            self.control.plan(&self.offers, lengths);
        }
        let planned: usize = lengths.iter().map(|length| usize::from(length.host + length.device)).sum();
        self.stats.mean_length += 0.1 * (planned as f32 / rows.len().max(1) as f32 - self.stats.mean_length);
    }

    /// What a step that only decodes took.
    pub fn observe(&mut self, step: &StepOutcome) {
        self.steps += 1;
        if !self.config.adaptive {
            return;
        }
        self.control.observe(step);
        if self.steps.is_multiple_of(64) {
            self.acceptance.fade(Source::DraftModel);
        }
        if self.control.wants_promise() {
            self.offers.clear();
            for sequence in self.sequences.iter().filter(|sequence| sequence.open) {
                let device = if self.config.draft_model { self.config.max_draft } else { 0 };
                let (personal, proposed) = (&sequence.personal, sequence.proposed());
                offer(&mut self.offers, &self.acceptance, personal, proposed, device, self.config.max_draft);
            }
            self.control.promise(&self.offers);
        }
    }

    /// Counts since the beginning, and what holds now. O(tenants).
    pub fn stats(&self) -> Stats {
        Stats {
            active: self.active(),
            history_tokens: self.history.tokens(),
            history_bytes: self.history.bytes(),
            ..self.stats.clone()
        }
    }
}

/// Adds a row to the offers.
fn offer(
    offers: &mut Offers,
    acceptance: &Acceptance,
    personal: &acceptance::Personal,
    segments: &Segments,
    device: usize,
    max_draft: usize,
) {
    let forced = segments.forced();
    let device = device.min(max_draft.saturating_sub(forced));
    let host = segments.positions().map(|(segment, at)| acceptance.probability(personal, segment, at));
    let model = Segment { source: Source::DraftModel, count: 0, class: 0 };
    let drafted = (0..device).map(|at| acceptance.probability(personal, model, at));
    offers.push(host, forced, drafted);
}
