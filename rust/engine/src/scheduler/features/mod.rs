//! Features that only some requests have: grammars, penalties, log-probabilities of answers and of prompts, pooling,
//! logits processors outside, drafts. Each is a [`RowFeature`].
//!
//! ```text
//!   submit         begin ──────────────► the feature's state of the request, in a `PerRequest`
//!   plan           limit_drafts          how many of a row's proposed drafts may be sent
//!   fill           begin_step ─► write, for each row that samples ─► end_step: the numbers of the header
//!   commit         on_token ───────────► may refuse the token, or end the request with it
//!                  wants_samples         no token of the request is taken without being sampled
//!   end            leave
//! ```
//!
//! A feature owns its state; the step knows none of it. All of them are called in a fixed order, by static dispatch; a
//! feature that no request has costs a look at an empty list.

mod closing;
pub(super) mod drafts;
mod dry;
mod grammars;
pub(super) mod logprobs;
mod masks;
mod penalties;
mod penalty_budget;
pub(super) mod pooling;
pub(super) mod processors;
mod prompt_logprobs;
mod thread_pool;

use super::planner::PlannerConfig;
use super::queue::requests::Taken;
use super::step::buffers::{StepBuffers, StepLayout};
use super::step::fill::SampledRow;
use super::step::sequence_table::RequestId;
use super::step::{StepRecord, Steps};
use crate::error::Result;
use crate::messages::Submit;
pub(super) use drafts::DraftedRow;
use drafts::Drafts;
use grammars::Grammars;
use logprobs::WantedLogProbs;
use penalty_budget::PenaltyBudget;
use pooling::Pools;
use processors::Processors;
use prompt_logprobs::PromptScores;

/// A token that was sampled for a request.
pub(super) struct NewToken {
    pub request: RequestId,
    pub token: u32,
    /// Tokens that the request has generated, with this one.
    pub generated: u32,
    /// Tokens that it may still generate.
    pub left: u32,
    /// Tokens that the same row brought before it.
    pub nth: usize,
}

/// How many of a row's proposed drafts may be sent, and whether the device may draft for it instead.
pub(super) struct DraftLimits {
    pub host: usize,
    pub device: bool,
}

/// A feature of requests, called by the step at fixed points.
trait RowFeature {
    /// Takes the feature's part of a submission. `tokens` are its prompt and what it generated before a restart.
    /// `InvalidArgument` for what no frontend would send.
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()>;

    /// Lowers the limits for a row with these drafts.
    fn limit_drafts(&mut self, _id: RequestId, _drafts: &[u32], _limits: &mut DraftLimits) {}

    /// The rows of a step are written from now on.
    fn begin_step(&mut self) {}

    /// Writes the feature's fields of a row that samples.
    fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>);

    /// Every row is written: the feature's numbers go into the header, and what `commit` needs of them into the record.
    fn end_step(&mut self, header: &mut [i64], record: &mut StepRecord);

    /// Takes a sampled token in.
    fn on_token(&mut self, _token: &NewToken) -> Taken {
        Taken::Goes
    }

    /// Whether the request's tokens are to be sampled even where only one may come.
    fn wants_samples(&self, _id: RequestId) -> bool {
        false
    }

    /// The request has ended, or never began.
    fn leave(&mut self, id: RequestId);
}

/// All features.
pub(super) struct Features {
    pub grammars: Grammars,
    pub penalties: PenaltyBudget,
    pub logprobs: WantedLogProbs,
    pub pooling: Pools,
    pub prompts: PromptScores,
    pub processors: Processors,
    pub drafts: Drafts,
}

impl Features {
    pub fn new(config: &PlannerConfig, layout: &StepLayout) -> Self {
        Self {
            grammars: Grammars::default(),
            penalties: PenaltyBudget::new(layout, config.max_sequences),
            logprobs: WantedLogProbs::default(),
            pooling: Pools::default(),
            prompts: PromptScores::default(),
            processors: Processors::default(),
            drafts: Drafts::default(),
        }
    }

    /// A request is submitted. After an error the caller calls [`leave`](Self::leave).
    pub fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()> {
        self.logprobs.begin(id, submit, tokens)?;
        self.penalties.begin(id, submit, tokens)?;
        self.pooling.begin(id, submit, tokens)?;
        self.prompts.begin(id, submit, tokens)?;
        self.processors.begin(id, submit, tokens)?;
        self.drafts.begin(id, submit, tokens)?;
        self.grammars.begin(id, submit, tokens)
    }

    /// Collects what may be drafted for the rows that decode.
    pub fn propose(&mut self, steps: &Steps) {
        let Self { grammars, penalties, processors, drafts, .. } = self;
        drafts.propose(steps, grammars, |grammars, id, drafts, limits| {
            grammars.limit_drafts(id, drafts, limits);
            penalties.limit_drafts(id, drafts, limits);
            processors.limit_drafts(id, drafts, limits);
        });
    }

    pub fn begin_step(&mut self) {
        self.grammars.begin_step();
        self.penalties.begin_step();
        self.logprobs.begin_step();
        self.pooling.begin_step();
        self.prompts.begin_step();
        self.processors.begin_step();
        self.drafts.begin_step();
    }

    pub fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>) {
        self.grammars.write(row, out);
        self.penalties.write(row, out);
        self.logprobs.write(row, out);
        self.processors.write(row, out);
        self.drafts.write(row, out);
    }

    pub fn end_step(&mut self, header: &mut [i64], record: &mut StepRecord) {
        self.grammars.end_step(header, record);
        self.penalties.end_step(header, record);
        self.logprobs.end_step(header, record);
        self.pooling.end_step(header, record);
        self.prompts.end_step(header, record);
        self.processors.end_step(header, record);
        self.drafts.end_step(header, record);
    }

    /// Decides whether a request takes a sampled token; only a token that one feature lets pass reaches the next.
    pub fn on_token(&mut self, token: &NewToken) -> Taken {
        match self.grammars.on_token(token) {
            Taken::Goes => self.penalties.on_token(token),
            other => other,
        }
    }

    /// The token that comes next whatever the model says, if no feature wants it sampled.
    pub fn certain(&mut self, id: RequestId) -> Option<u32> {
        let token = self.grammars.certain(id)?;
        let sampled = self.penalties.wants_samples(id)
            || self.logprobs.wants_samples(id)
            || self.processors.wants_samples(id);
        (!sampled).then_some(token)
    }

    /// The tokens of a row were taken; `new` are those by which its sequence is longer.
    pub fn commit_row(&mut self, row: &DraftedRow<'_>, new: &[u32]) {
        self.drafts.commit_row(row, new);
    }

    /// Why a feature can go on with a request no further, said once.
    pub fn complaint(&mut self, id: RequestId) -> Option<String> {
        self.grammars.complaint(id)
    }

    pub fn leave(&mut self, id: RequestId) {
        self.grammars.leave(id);
        self.penalties.leave(id);
        self.logprobs.leave(id);
        self.pooling.leave(id);
        self.prompts.leave(id);
        self.processors.leave(id);
        self.drafts.leave(id);
    }
}

/// A feature's state of the requests that have it, by request id; O(1).
struct PerRequest<T> {
    slots: Vec<Option<T>>,
    len: usize,
}

impl<T> Default for PerRequest<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }
}

impl<T> PerRequest<T> {
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn insert(&mut self, id: RequestId, value: T) {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.len += usize::from(self.slots[at].replace(value).is_none());
    }

    fn get(&self, id: RequestId) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    fn remove(&mut self, id: RequestId) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take();
        self.len -= usize::from(value.is_some());
        value
    }
}
