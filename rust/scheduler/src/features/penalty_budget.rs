//! Penalties in the steps: which rows have room for theirs, and when they are written.
//!
//! ```text
//!   plan             rows with penalties ──► granted, each by the most that it may have, while the budget lasts
//!   fill_late        the step before is committed ──► penalties of every row that was granted
//! ```
//!
//! Penalties are a function of all tokens before, so they are filled after the commit of the step before, like masks.
//! A step takes as many rows with penalties as its buffers have room for; the first row that is left out is the first
//! that is granted in the next step. Granting costs O(running) a step, filling what the rows'
//! [penalties](super::penalties) cost; both cost nothing where no request has penalties.

use std::ops::Range;

use super::dry::Dry;
use super::penalties::{Penalties, PenaltiesExtension, PenaltyFields};
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, LateStep, NewToken, Registration, RowFeature, Terms};
use crate::queue::requests::Taken;
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::layout::StepLayout;
use crate::step::rows::{Runner, SampledRow, StepRow};
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::Result;
use pyengine_messages::{ExtensionKind, Submit, token_ids};
use pyengine_telemetry::Stage;

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<PenaltiesExtension>()],
    gives: &[],
    make: |config, layout| Box::new(PenaltyBudget::new(layout, config.max_sequences)),
};

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
struct PenaltyBudget {
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
    fn new(layout: &StepLayout, max_sequences: usize) -> Self {
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
}

impl RowFeature for PenaltyBudget {
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let sampling = &submit.sampling;
        let changes: PenaltiesExtension = submit.extensions.get()?.unwrap_or_default();
        let penalized = sampling.has_penalties() || sampling.has_dry();
        if !penalized && changes.logit_bias.is_empty() && changes.bad_words.is_empty() {
            return Ok(false);
        }
        let (prompt, generated) = tokens.split_at(submit.prompt_length as usize);
        let dry = Dry::new(sampling, token_ids(&changes.dry_breakers), tokens);
        let penalties = Penalties::new(sampling, &changes, dry, self.vocab_size, prompt, generated)?;
        self.requests.insert(id, penalties);
        Ok(true)
    }

    /// Chooses the decodes whose penalties the step has room for. The others wait.
    fn begin_plan(&mut self, table: &SequenceTable, running: &[Runner]) {
        self.left = self.max_penalties;
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

    fn may_decode(&self, slot: u32) -> bool {
        self.granted[slot as usize]
    }

    fn reserve(&mut self, id: RequestId, ahead: usize) -> bool {
        let Some(penalties) = self.requests.get(id) else { return true };
        let left = self.left.checked_sub(penalties.bound(ahead));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Penalties are a function of the drafts too, which the host does not see on the device.
    fn limit_drafts(&mut self, _id: RequestId, _drafts: &[u32], limits: &mut DraftLimits) {
        limits.device = false;
    }

    fn begin_step(&mut self) {
        self.rows.clear();
    }

    fn write(&mut self, row: &StepRow<'_>, _out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let SampledRow { first_logit, first_draft, drafts } = row.sampling?;
        let (slot, generation) = (row.slot, row.generation);
        self.rows.push(PenaltyRow { slot, generation, first_logit, first_draft, drafts });
        None
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_penalized_rows = self.rows.len() as i64;
        header.num_penalties = 0;
    }

    /// Fills the penalties of every logits row.
    fn fill_late(&mut self, step: &LateStep<'_>, out: &mut StepBuffers<'_>) -> Result<Option<Stage>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        step.check_committed()?;
        let table = step.table;
        let (token, factor, add) = (&mut *out.penalty_token, &mut *out.penalty_factor, &mut *out.penalty_add);
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
        out.penalty_start[next..=step.logits].fill(fields.end as i32);
        out.header.num_penalties = fields.end as i64;
        filled.map(|()| Some(Stage::BufferFill))
    }

    fn on_token(&mut self, token: &NewToken) -> Taken {
        if let Some(penalties) = self.requests.get_mut(token.request) {
            penalties.push(token.token);
        }
        Taken::Goes
    }

    /// A penalty may forbid the token.
    fn wants_samples(&self, _id: RequestId) -> bool {
        true
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
