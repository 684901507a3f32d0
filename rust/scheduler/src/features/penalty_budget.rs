//! Penalties in the steps: which rows have room for theirs, and when they are written.
//!
//! ```text
//!   plan             rows with penalties ──► granted, each by the most that it may have, while the budget lasts
//!   fill_penalties   the step before is committed ──► penalties of every row that was granted
//! ```
//!
//! Penalties are a function of all tokens before, so they are filled after the commit of the step before, like masks.
//! A step takes as many rows with penalties as its buffers have room for; the first row that is left out is the first
//! that is granted in the next step. Granting costs O(running) a step, filling what the rows'
//! [penalties](super::penalties) cost; both cost nothing where no request has penalties.

use super::dry::Dry;
use super::penalties::{Penalties, PenaltiesExtension, PenaltyFields};
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, NewToken, RowFeature};
use crate::queue::requests::Taken;
use crate::queue::submit::token_ids;
use crate::step::buffers::{StepBuffers, StepLayout, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::{RequestId, SequenceTable};
use crate::step::{StepRecord, Steps};
use pyengine_base::error::{Error, Result};
use pyengine_messages::Submit;

/// A row whose penalties are to be filled.
#[derive(Debug, Clone, Copy)]
struct PenaltyRow {
    slot: u32,
    generation: u32,
    first_logit: usize,
    first_draft: usize,
    drafts: usize,
}

/// The penalties of all requests, and a step's room for them.
pub(crate) struct PenaltyBudget {
    vocab_size: usize,
    max_penalties: usize,
    requests: PerRequest<Penalties>,
    /// Penalties that the step being planned still has room for.
    left: usize,
    /// By slot: the sequence may decode in the step that is being planned.
    granted: Vec<bool>,
    /// Running order of the sequence that is granted first.
    first: (i32, u64),
    /// Rows of the step that was planned last.
    rows: Vec<PenaltyRow>,
    /// Scratch of `fill`.
    drafts: Vec<u32>,
}

impl PenaltyBudget {
    pub fn new(layout: &StepLayout, max_sequences: usize) -> Self {
        Self {
            vocab_size: layout.vocab_size(),
            max_penalties: layout.max_penalties(),
            requests: PerRequest::default(),
            left: 0,
            granted: vec![false; max_sequences],
            first: (i32::MIN, 0),
            rows: Vec::new(),
            drafts: Vec::new(),
        }
    }

    /// Begins to plan a step: chooses the decodes whose penalties it has room for. The others wait.
    pub fn grant(&mut self, steps: &Steps) {
        self.left = self.max_penalties;
        if self.requests.is_empty() {
            return;
        }
        let (table, running) = (steps.table(), steps.running());
        let split = running.partition_point(|runner| runner.order < self.first);
        let mut left_out = None;
        for runner in running[split..].iter().chain(&running[..split]) {
            let at = runner.slot as usize;
            let progress = &table.progress[at];
            let Some(penalties) = self.requests.get(table.request[at]) else { continue };
            if progress.remaining() != 1 {
                continue;
            }
            let needed = penalties.bound(progress.pending as usize);
            self.granted[at] = needed <= self.left;
            if self.granted[at] {
                self.left -= needed;
            } else {
                left_out = left_out.or(Some(runner.order));
            }
        }
        self.first = left_out.unwrap_or((i32::MIN, 0));
    }

    /// Whether a sequence has no penalties or the step has room for them.
    pub fn may_decode(&self, id: RequestId, slot: u32) -> bool {
        self.requests.is_empty() || self.requests.get(id).is_none() || self.granted[slot as usize]
    }

    /// Takes the room for the penalties of a logits row that is `ahead` tokens beyond the known ones. False if there is
    /// none left.
    pub fn reserve(&mut self, id: RequestId, ahead: usize) -> bool {
        let Some(penalties) = self.requests.get(id) else { return true };
        let left = self.left.checked_sub(penalties.bound(ahead));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// How many of `count` drafts of a decode have room for the penalties of what is sampled behind them; takes it.
    pub fn reserve_drafts(&mut self, id: RequestId, count: usize) -> usize {
        (1..=count).take_while(|ahead| self.reserve(id, *ahead)).count()
    }

    /// Fills the penalties of the step that was planned last into `out`, its buffers with `logits` logits rows; returns
    /// how many. `InvalidArgument` unless the step before is `committed`.
    pub fn fill(
        &mut self,
        table: &SequenceTable,
        out: StepBuffers<'_>,
        logits: usize,
        committed: bool,
    ) -> Result<usize> {
        if self.rows.is_empty() {
            return Ok(0);
        }
        if !committed {
            return Err(Error::InvalidArgument("the step before is not committed yet".into()));
        }
        let (token, factor, add) = (out.penalty_token, out.penalty_factor, out.penalty_add);
        let mut fields = PenaltyFields { token, factor, add, end: 0 };
        let (mut next, mut filled) = (0, Ok(()));
        for row in self.rows.drain(..) {
            let behind = row.first_logit + row.drafts + 1;
            out.penalty_start[next..behind].fill(fields.end as i32);
            next = behind;
            // A sequence that has ended meanwhile has none: whatever is sampled is dropped.
            if !table.is_current(row.slot, row.generation) {
                continue;
            }
            self.drafts.clear();
            let drafts = &out.token_ids[row.first_draft..row.first_draft + row.drafts];
            self.drafts.extend(drafts.iter().map(|token| *token as u32));
            let at = row.slot as usize;
            if let Some(penalties) = self.requests.get_mut(table.request[at]) {
                let starts = &mut out.penalty_start[row.first_logit..behind];
                let own = penalties.fill(&table.tokens[at], &self.drafts, starts, &mut fields);
                filled = filled.and(own);
            }
        }
        out.penalty_start[next..=logits].fill(fields.end as i32);
        out.header[header::NUM_PENALTIES] = fields.end as i64;
        filled.map(|()| fields.end)
    }
}

impl RowFeature for PenaltyBudget {
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()> {
        let sampling = &submit.sampling;
        let changes: PenaltiesExtension = submit.extensions.get()?.unwrap_or_default();
        let penalized = sampling.has_penalties() || sampling.has_dry();
        if penalized || !changes.logit_bias.is_empty() || !changes.bad_words.is_empty() {
            let (prompt, generated) = tokens.split_at(submit.prompt_length as usize);
            let dry = Dry::new(sampling, token_ids(&changes.dry_breakers), tokens);
            let penalties = Penalties::new(sampling, &changes, dry, self.vocab_size, prompt, generated)?;
            self.requests.insert(id, penalties);
        }
        Ok(())
    }

    fn limit_drafts(&mut self, id: RequestId, _drafts: &[u32], limits: &mut DraftLimits) {
        // Penalties are a function of the drafts too, which the host does not see on the device.
        limits.device &= self.requests.get(id).is_none();
    }

    fn begin_step(&mut self) {
        self.rows.clear();
    }

    fn write(&mut self, row: &SampledRow, _out: &mut StepBuffers<'_>) {
        if self.requests.get(row.request).is_none() {
            return;
        }
        let &SampledRow { slot, generation, first_logit, first_draft, .. } = row;
        let drafts = row.drafts as usize;
        self.rows.push(PenaltyRow { slot, generation, first_logit, first_draft, drafts });
    }

    fn end_step(&mut self, header: &mut [i64], _record: &mut StepRecord) {
        header[header::NUM_PENALIZED_ROWS] = self.rows.len() as i64;
    }

    fn on_token(&mut self, token: &NewToken) -> Taken {
        if let Some(penalties) = self.requests.get_mut(token.request) {
            penalties.push(token.token);
        }
        Taken::Goes
    }

    /// A penalty may forbid the token.
    fn wants_samples(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some()
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
