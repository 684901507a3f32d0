//! The interface of a feature of rows: what the step asks of it, and tells it.
//!
//! ```text
//!   submit     begin ────────► the feature's state of the request, in a `PerRequest`
//!              prepare ──► prepared ──► start: before the request is queued, where `begin` asks for that
//!   plan       begin_plan, may_decode, reserve: a step's room     forced_tokens, limit_drafts, prediction: drafts
//!   fill       begin_step ──► write, for each row ──► end_step: the numbers of the header
//!              fill_late: what depends on the tokens of the step before
//!   commit     fault ──► take: results of the row                 on_token: takes a token, or refuses it, or ends the request
//!              certain, wants_samples                             append: what goes out with the row's tokens
//!              conclude: the answer of a request that has no tokens
//!   end        begin_again, where it was preempted;  leave
//! ```
//!
//! Every method but `begin` and `leave` has a default, which is that of a feature that takes no part. Only requests that
//! have the feature bring its methods into a step.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::config::PlannerConfig;
use crate::outbox::Outbox;
use crate::queue::requests::{Request, Taken};
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::layout::StepLayout;
use crate::step::rows::{Runner, StepRow};
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::{Error, Result};
use pyengine_messages::{ExtensionKind, FinishReason, RequestKey, Submit};
use pyengine_telemetry::{Histogram, Stage};

/// Why a request ends for which no token could be sampled.
pub(crate) const NOT_FINITE: &str = "the model's logits are not finite, so no token can be chosen";

/// An entry of the list of features.
pub(super) struct Registration {
    /// The extensions of a submission that it takes.
    pub takes: &'static [ExtensionKind],
    /// The extras of an answer that it gives back.
    pub gives: &'static [ExtensionKind],
    /// Makes it, for steps of a layout.
    pub make: fn(&PlannerConfig, &StepLayout) -> Box<dyn RowFeature>,
}

/// What features say of a request that is submitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Tokens follow its prompt.
    pub samples: bool,
    /// The detokenizer is to find the place of each token in the text.
    pub places: bool,
    /// It is not queued before its features have prepared it.
    pub prepares: bool,
    /// It shares cached prefixes only with requests of the same, besides those of its own salt.
    pub salt: u64,
}

/// How a request goes on that a feature has prepared.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Texts for its client.
    pub notices: Vec<String>,
    /// It ends at once.
    pub end: Option<FinishReason>,
}

/// A token that was sampled for a request.
pub(crate) struct NewToken {
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
pub(crate) struct DraftLimits {
    pub host: usize,
    pub device: bool,
}

/// The step that was planned last, before the device samples.
pub(crate) struct LateStep<'a> {
    pub table: &'a SequenceTable,
    pub layout: &'a StepLayout,
    /// How many logits it has.
    pub logits: usize,
    /// Every step before it is committed.
    pub committed: bool,
}

impl LateStep<'_> {
    /// `InvalidArgument` unless every step before it is committed.
    pub fn check_committed(&self) -> Result<()> {
        let error = || Error::InvalidArgument("the step before is not committed yet".into());
        self.committed.then_some(()).ok_or_else(error)
    }
}

/// The name of a request inside the planner and in messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who {
    pub id: RequestId,
    pub key: RequestKey,
}

/// A feature of rows.
pub(crate) trait RowFeature: Any + Send {
    /// Takes the feature's part of a submission, if there is one: returns whether the request has the feature. `tokens` are
    /// its prompt and what it generated before a restart. `InvalidArgument` for what no frontend would send.
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32], terms: &mut Terms) -> Result<bool>;

    /// The request has ended, or never began.
    fn leave(&mut self, id: RequestId);

    /// Begins to prepare a request, if the `begin` of some feature has set [`Terms::prepares`]. True if that is done at
    /// once.
    fn prepare(&mut self, _id: RequestId) -> bool {
        true
    }

    /// Appends the requests that were prepared since the last call.
    fn prepared(&mut self, _ids: &mut Vec<RequestId>) {}

    /// Starts a request that was prepared, with `generated` tokens from before a restart and `left` that may come.
    fn start(&mut self, _id: RequestId, _generated: &[u32], _left: u32) -> Start {
        Start::default()
    }

    /// How many of the request's first tokens may come from the prefix cache.
    fn reusable(&self, _id: RequestId) -> u32 {
        u32::MAX
    }

    /// A step is planned from now on: chooses which of the running sequences it has room for.
    fn begin_plan(&mut self, _table: &SequenceTable, _running: &[Runner]) {}

    /// Whether the step has room for the next token of a sequence.
    fn may_decode(&self, _slot: u32) -> bool {
        true
    }

    /// Takes room for logits that are `ahead` tokens beyond the known ones. False if there is none left.
    fn reserve(&mut self, _id: RequestId, _ahead: usize) -> bool {
        true
    }

    /// Appends the tokens that surely come next, at most `limit`. False where drafts are of no use.
    fn forced_tokens(&mut self, _id: RequestId, _limit: usize, _out: &mut Vec<u32>) -> bool {
        true
    }

    /// Lowers the limits for a row with these drafts.
    fn limit_drafts(&mut self, _id: RequestId, _drafts: &[u32], _limits: &mut DraftLimits) {}

    /// The tokens that the answer is expected to repeat in parts.
    fn prediction(&self, _id: RequestId) -> Option<Arc<[u32]>> {
        None
    }

    /// The rows of a step are written from now on.
    fn begin_step(&mut self) {}

    /// Writes the feature's fields of a row. Returns where its results will be, if it wants some.
    fn write(&mut self, _row: &StepRow<'_>, _out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        None
    }

    /// Every row is written: the feature's numbers go into the header.
    fn end_step(&mut self, _header: &mut StepHeader) {}

    /// Writes what depends on the tokens of the step before; returns the stage of the timeline that this was, if it was
    /// anything. `InvalidArgument` unless the step before is committed.
    fn fill_late(&mut self, _step: &LateStep<'_>, _out: &mut StepBuffers<'_>) -> Result<Option<Stage>> {
        Ok(None)
    }

    /// Why nothing may be built on a row with these results, if so.
    fn fault(&self, _results: &StepBuffers<'_>, _own: Range<usize>) -> Option<&'static str> {
        None
    }

    /// Takes the results of a row, before its tokens are taken.
    fn take(&mut self, _who: Who, _results: &StepBuffers<'_>, _own: Range<usize>, _outbox: &mut Outbox) {}

    /// Takes a sampled token in, or refuses it, or ends the request with it.
    fn on_token(&mut self, _token: &NewToken) -> Taken {
        Taken::Goes
    }

    /// No token could be sampled for the request. True if the feature has left none, which its complaint says then.
    fn leaves_none(&mut self, _id: RequestId) -> bool {
        false
    }

    /// The only token that may come next, if that is known without work.
    fn certain(&mut self, _id: RequestId) -> Option<u32> {
        None
    }

    /// Whether the request's tokens are to be sampled even where only one may come.
    fn wants_samples(&self, _id: RequestId) -> bool {
        false
    }

    /// Adds what goes out with the first `taken` tokens of a row.
    fn append(
        &self,
        _id: RequestId,
        _results: &StepBuffers<'_>,
        _own: Range<usize>,
        _taken: usize,
        _outbox: &mut Outbox,
    ) {
    }

    /// Why the feature can go on with a request no further, said once.
    fn complaint(&mut self, _id: RequestId) -> Option<String> {
        None
    }

    /// Sends the answer of a request without tokens whose prompt is computed. `None` if the feature has no part in it, an
    /// error where the answer cannot be given.
    fn conclude(
        &mut self,
        _id: RequestId,
        _request: &Request,
        _outbox: &mut Outbox,
    ) -> Option<std::result::Result<(), &'static str>> {
        None
    }

    /// The request was preempted: it will be computed again.
    fn begin_again(&mut self, _id: RequestId) {}

    /// Appends what it counts, by name.
    fn stats(&self, _out: &mut Vec<(String, u64)>) {}

    /// Appends its distributions, by name.
    fn histograms(&self, _out: &mut Vec<(&'static str, Histogram)>) {}
}
