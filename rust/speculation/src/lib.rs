//! Drafts of what may come next, and how long they should be.
//!
//! ```text
//!                 tokens that come                       step's rows and drafts        measured steps
//!                       │                                         │                          │
//!  slot ─► Sequence: n-gram, prediction         ─► propose ─► plan_lengths ◄── Control: model of time, on or off
//!               └─ judged by the tokens that come ─► Acceptance ──┘
//! ```
//!
//! A draft changes no token: it only says where the device may look ahead. One [`Speculator`] serves one planner
//! on its thread. A token costs a microsecond or so; a draft as much. Nothing here allocates once its buffers have
//! grown, but for the indices of longer and longer texts.

mod acceptance;
mod control;
mod draft;
mod offers;
mod outcome;
mod proposers;
mod rows;
mod sequence;
#[cfg(test)]
mod simulation;
mod source;

use std::sync::Arc;

pub use draft::{Segment, Segments};
pub use offers::Length;
pub use outcome::StepOutcome;
pub use rows::Row;
pub use source::{SOURCES, Source, Sources};

use acceptance::Acceptance;
use control::{Batch, Control};
use offers::{Offers, offer};
use sequence::Sequence;

/// Positions of a draft that [`Stats`] tells apart; the last stands for all beyond.
pub const POSITIONS: usize = 16;

/// Tokens of a prompt that are indexed when it is opened; the rest follows, with each token and in
/// [`Speculator::tend`].
const INDEXED_AT_ONCE: usize = 2048;

/// Tokens of an answer before any was seen.
const ANSWER: f32 = 100.0;

/// Tokens that are indexed with each token that comes, as long as some are put off.
const INDEXED_PER_TOKEN: usize = 16;

/// Tokens that are indexed before a draft is asked for, as long as some are put off.
const INDEXED_PER_DRAFT: usize = 64;

/// While no drafts are sent, 1 in `WATCHED` sequences, and the first `FEW`, get shadow drafts, which are compared with
/// the tokens that come: that shows when drafts would pay. Other sequences are indexed once they may have drafts.
const WATCHED: usize = 4;
const FEW: usize = 2;

/// The settings of speculation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// The sources of drafts.
    pub sources: Sources,
    /// Most draft tokens of a row.
    pub max_draft: usize,
    /// Lengths follow from measurements; otherwise they are always the greatest, for tests.
    pub adaptive: bool,
}

/// Counts since the beginning, and what holds now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Draft tokens that were verified, by source.
    pub proposed: [u64; SOURCES],
    /// Accepted draft tokens, by source.
    pub accepted: [u64; SOURCES],
    /// Draft tokens by source and position in the row's draft: verified after accepted ones, and accepted.
    pub by_position: [[(u64, u64); POSITIONS]; SOURCES],
    /// Whether steps carry drafts.
    pub active: bool,
    /// Draft tokens of a row, over the last steps that were planned with drafts.
    pub mean_length: f32,
}

/// Proposes drafts for all sequences of a planner and decides their lengths.
pub struct Speculator {
    config: SpeculationConfig,
    sequences: Vec<Sequence>,
    acceptance: Acceptance,
    control: Control,
    stats: Stats,
    offers: Offers,
    draft: Vec<u32>,
    scratch: Vec<u32>,
    steps: u64,
    /// Sequences that were opened, and those that are open.
    opened: usize,
    open: usize,
    /// Tokens of an answer, of the last few dozen.
    answer: f32,
    /// The slot whose prompt is indexed next by [`tend`](Self::tend).
    tended: usize,
}

impl Speculator {
    /// For sequences in slots below `max_sequences`.
    pub fn new(config: SpeculationConfig, max_sequences: usize) -> Self {
        Self {
            control: Control::new(config.sources.has(Source::Forced)),
            sequences: (0..max_sequences).map(|_| Sequence::new(config.sources)).collect(),
            config,
            acceptance: Acceptance::default(),
            stats: Stats::default(),
            offers: Offers::default(),
            draft: Vec::new(),
            scratch: Vec::new(),
            steps: 0,
            opened: 0,
            open: 0,
            answer: ANSWER,
            tended: 0,
        }
    }

    /// A sequence begins in a slot, or goes on after preemption: all its tokens, of which `prompt_length` are the
    /// prompt. What was in the slot is forgotten.
    ///
    /// # Panics
    /// If the slot is not below `max_sequences`, here and below.
    pub fn open(&mut self, slot: u32, tokens: &[u32], prompt_length: usize, prediction: Option<Arc<[u32]>>) {
        let active = self.active();
        let sequence = &mut self.sequences[slot as usize];
        self.open += usize::from(!sequence.open);
        self.opened += 1;
        sequence.open(tokens, prompt_length, prediction.as_ref());
        sequence.watched = self.open <= FEW || self.opened.is_multiple_of(WATCHED);
        if active || sequence.watched {
            sequence.index(INDEXED_AT_ONCE);
        }
    }

    /// Committed tokens of a sequence, in order. Tokens for a slot in which none is open are ignored.
    pub fn append(&mut self, slot: u32, tokens: &[u32]) {
        let active = self.active();
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return;
        }
        for &token in tokens {
            sequence.append(token, &mut self.acceptance);
        }
        if active || sequence.watched {
            sequence.index(INDEXED_PER_TOKEN * tokens.len());
        }
        if !active && sequence.watched && sequence.wants_shadow() {
            // So that it is seen when drafts would pay, without sending any.
            self.draft.clear();
            sequence.propose(
                &self.acceptance,
                &[],
                self.config.max_draft,
                &mut self.draft,
                &mut self.scratch,
            );
        }
    }

    /// A sequence ends or is preempted; `finished` says that its answer is whole.
    pub fn close(&mut self, slot: u32, finished: bool) {
        let sequence = &mut self.sequences[slot as usize];
        if sequence.open && finished {
            self.answer += 0.05 * (sequence.output().len() as f32 - self.answer);
        }
        self.open -= usize::from(sequence.open);
        sequence.clear();
    }

    /// Indexes prompts whose indexing was put off: at most `budget` tokens. To be called once a
    /// step, while the device runs.
    pub fn tend(&mut self, budget: usize) {
        let mut left = budget;
        let sequences = if self.active() { self.sequences.len() } else { 0 };
        for _ in 0..sequences {
            let sequence = &mut self.sequences[self.tended];
            left -= sequence.index(left);
            if sequence.behind() > 0 {
                break;
            }
            self.tended = (self.tended + 1) % self.sequences.len();
        }
    }

    /// Appends a draft for a sequence, at most `limit` tokens: `forced` ones from a grammar first, then those of the
    /// best source by expected gain. Returns the source of each.
    pub fn propose(&mut self, slot: u32, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Segments {
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return Segments::default();
        }
        let forced = if self.config.sources.has(Source::Forced) { forced } else { &[] };
        let limit = limit.min(self.config.max_draft);
        sequence.index(INDEXED_PER_DRAFT);
        sequence.propose(&self.acceptance, forced, limit, draft, &mut self.scratch)
    }

    /// Verification of a row's draft: the first `accepted` tokens were right. `segments` are those that
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

    /// Whether steps carry drafts.
    pub fn active(&self) -> bool {
        self.drafts() && (!self.config.adaptive || self.control.active())
    }

    /// Whether there can be any.
    fn drafts(&self) -> bool {
        !self.config.sources.is_empty() && self.config.max_draft > 0
    }

    /// Takes a step's rows, drafts and time into account.
    pub fn observe(&mut self, step: &StepOutcome) {
        self.steps += 1;
        if !self.config.adaptive {
            return;
        }
        self.control.observe(step);
        if self.steps.is_multiple_of(64) {
            self.acceptance.fade(Source::DraftModel);
        }
        if self.control.wants_offers() {
            self.offers.clear();
            let mut watched = None;
            for sequence in self.sequences.iter().filter(|sequence| sequence.open) {
                // A sequence that is not watched counts like the last one that is.
                watched = if sequence.watched { Some(sequence) } else { watched };
                let sequence = watched.unwrap_or(sequence);
                let device =
                    if self.config.sources.has(Source::DraftModel) { self.config.max_draft } else { 0 };
                let (personal, proposed) = (&sequence.personal, sequence.proposed());
                offer(&mut self.offers, &self.acceptance, personal, proposed, device, self.config.max_draft);
            }
            let batch = Batch { rows: self.offers.len(), prompt_tokens: 0 };
            self.control.expect(&self.offers, batch);
        }
    }

    /// Counts since the beginning, and what holds now.
    pub fn stats(&self) -> Stats {
        Stats { active: self.active(), ..self.stats.clone() }
    }
}

#[cfg(test)]
mod tests;
