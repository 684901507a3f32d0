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
mod grammar_answer;
pub(super) mod grammars;
pub(super) mod logprobs;
mod masks;
pub(super) mod penalties;
mod penalty_budget;
mod per_request;
pub(super) mod pooling;
pub(super) mod processors;
pub(super) mod prompt_logprobs;
mod row_feature;
mod thread_pool;

use super::config::PlannerConfig;
use super::queue::requests::Taken;
use super::step::buffers::{StepBuffers, StepLayout};
use super::step::fill::SampledRow;
use super::step::sequence_table::RequestId;
use super::step::{StepRecord, Steps};
pub(super) use drafts::DraftedRow;
use drafts::Drafts;
use grammars::Grammars;
use logprobs::WantedLogProbs;
use penalty_budget::PenaltyBudget;
use pooling::Pools;
use processors::Processors;
use prompt_logprobs::PromptScores;
use pyengine_base::error::Result;
use pyengine_messages::{ExtensionKind, Submit};
pub(super) use row_feature::NewToken;
use row_feature::RowFeature;

/// The extensions of a submission that features take.
pub const EXTENSIONS: [ExtensionKind; 8] = [
    ExtensionKind::of::<grammars::GrammarExtension>(),
    ExtensionKind::of::<grammars::AllowedTokensExtension>(),
    ExtensionKind::of::<penalties::PenaltiesExtension>(),
    ExtensionKind::of::<logprobs::LogProbsExtension>(),
    ExtensionKind::of::<pooling::PoolingExtension>(),
    ExtensionKind::of::<prompt_logprobs::PromptLogProbsExtension>(),
    ExtensionKind::of::<processors::LogitsProcessorsExtension>(),
    ExtensionKind::of::<drafts::PredictionExtension>(),
];

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
            pooling: Pools::new(layout),
            prompts: PromptScores::default(),
            processors: Processors::default(),
            drafts: Drafts::default(),
        }
    }

    /// A request is submitted. After an error the caller calls [`leave`](Self::leave).
    pub fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()> {
        submit.extensions.check(&EXTENSIONS)?;
        self.logprobs.begin(id, submit, tokens)?;
        self.penalties.begin(id, submit, tokens)?;
        self.pooling.begin(id, submit, tokens)?;
        self.prompts.begin(id, submit, tokens)?;
        self.processors.begin(id, submit, tokens)?;
        self.drafts.begin(id, submit, tokens)?;
        self.grammars.begin(id, submit, tokens)
    }

    /// How many of a request's first tokens may come from the prefix cache.
    pub fn reusable(&self, id: RequestId) -> u32 {
        self.pooling.reusable(id).min(self.prompts.reusable(id))
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
