//! Features that only some requests have: grammars, penalties, log-probabilities of answers and of prompts, pooling,
//! logits processors outside, predictions, adapters, costs. Each is a file with a [`RowFeature`] and its [`Registration`] in [`FEATURES`].
//!
//! A feature owns its state, and the step knows none of it. Each request has a set of features ([`Members`]), by which
//! the step calls them: a request without features costs a look at an empty set, and a feature that no request has is
//! never called.

pub(super) mod adapters;
mod closing;
pub(super) mod costs;
mod dry;
mod grammar_answer;
pub(super) mod grammars;
pub(super) mod logprobs;
mod masks;
mod members;
pub(super) mod penalties;
mod penalty_budget;
mod per_request;
pub(super) mod pooling;
pub(super) mod prediction;
pub(super) mod processors;
pub(super) mod prompt_logprobs;
pub(super) mod row_feature;
pub(super) mod thinking_budget;
mod thread_pool;

use std::any::Any;
use std::sync::Arc;

use super::config::PlannerConfig;
use super::outbox::Outbox;
use super::queue::requests::{Request, Taken};
use super::step::buffers::{StepBuffers, StepHeader};
use super::step::layout::StepLayout;
use super::step::rows::{Output, Runner, StepRow};
use super::step::sequence_table::{RequestId, SequenceTable};
use members::{Members, Membership};
use pyengine_base::error::Result;
use pyengine_messages::{ExtensionKind, Submit};
use pyengine_telemetry::{Histogram, Stage};
use row_feature::{DraftLimits, LateStep, NewToken, Registration, RowFeature, Start, Terms, Who};
use rustc_hash::FxHashMap;

/// All features, in the order in which they are called.
const FEATURES: [Registration; 9] = [
    grammars::FEATURE,
    penalty_budget::FEATURE,
    logprobs::FEATURE,
    pooling::FEATURE,
    prompt_logprobs::FEATURE,
    processors::FEATURE,
    prediction::FEATURE,
    adapters::FEATURE,
    costs::FEATURE,
];

/// The extensions of a submission that features take.
pub fn extensions() -> impl Iterator<Item = &'static ExtensionKind> + Clone {
    FEATURES.iter().flat_map(|feature| feature.takes)
}

/// The extras of an answer that features give back.
pub fn extras() -> impl Iterator<Item = &'static ExtensionKind> {
    FEATURES.iter().flat_map(|feature| feature.gives)
}

/// All features, and which requests have which.
pub(super) struct Features {
    list: Vec<Box<dyn RowFeature>>,
    members: Membership,
    /// Features that requests had when the step that was planned last was written.
    in_step: Members,
    /// How many features still prepare a request, where these are several.
    preparing: FxHashMap<RequestId, usize>,
}

impl Features {
    pub fn new(config: &PlannerConfig, layout: &StepLayout) -> Self {
        let list = FEATURES.iter().map(|feature| (feature.make)(config, layout)).collect();
        let (members, in_step) = (Membership::default(), Members::default());
        Self { list, members, in_step, preparing: FxHashMap::default() }
    }

    /// The feature of this type.
    ///
    /// # Panics
    /// If it is not in the list.
    pub fn get<F: Any>(&mut self) -> &mut F {
        let mut all = self.list.iter_mut().map(|feature| &mut **feature as &mut dyn Any);
        all.find_map(<dyn Any>::downcast_mut).expect("every feature is in the list")
    }

    /// A request is submitted. After an error the caller calls [`leave`](Self::leave).
    pub fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<Terms> {
        submit.extensions.check(extensions())?;
        let mut terms = Terms { samples: submit.max_tokens > 0, places: false, prepares: false, salt: 0 };
        for (at, feature) in self.list.iter_mut().enumerate() {
            if feature.begin(id, submit, tokens, &mut terms)? {
                self.members.enter(id, at);
            }
        }
        Ok(terms)
    }

    pub fn leave(&mut self, id: RequestId) {
        self.preparing.remove(&id);
        for at in self.members.leave(id) {
            self.list[at].leave(id);
        }
    }

    /// The features of a request.
    fn of(&mut self, id: RequestId) -> impl Iterator<Item = &mut Box<dyn RowFeature>> {
        let Self { list, members, .. } = self;
        let own = members.of(id);
        // Most requests have none.
        let list = if own.is_empty() { &mut [][..] } else { &mut list[..] };
        list.iter_mut().enumerate().filter(move |(at, _)| own.has(*at)).map(|(_, feature)| feature)
    }

    /// Begins to prepare a request. True if that is done at once.
    pub fn prepare(&mut self, id: RequestId) -> bool {
        let left = self.of(id).filter_map(|feature| (!feature.prepare(id)).then_some(())).count();
        if left > 1 {
            self.preparing.insert(id, left);
        }
        left == 0
    }

    /// Appends the requests whose last feature was prepared since the last call.
    pub fn prepared(&mut self, ids: &mut Vec<RequestId>) {
        self.members.present().for_each(|at| self.list[at].prepared(ids));
        let preparing = &mut self.preparing;
        ids.retain(|id| match preparing.get_mut(id) {
            Some(left) if *left > 1 => {
                *left -= 1;
                false
            }
            Some(_) => preparing.remove(id).is_some(),
            None => true,
        });
    }

    /// Starts a request that was prepared, with `generated` tokens from before a restart and `left` that may come.
    pub fn start(&mut self, id: RequestId, generated: &[u32], left: u32) -> Start {
        let mut all = Start::default();
        for feature in self.of(id) {
            let Start { notices, end } = feature.start(id, generated, left);
            all.notices.extend(notices);
            all.end = all.end.or(end);
        }
        all
    }

    /// How many of a request's first tokens may come from the prefix cache.
    pub fn reusable(&mut self, id: RequestId) -> u32 {
        self.of(id).map(|feature| feature.reusable(id)).min().unwrap_or(u32::MAX)
    }

    /// A step is planned from now on.
    pub fn begin_plan(&mut self, table: &SequenceTable, running: &[Runner]) {
        self.members.present().for_each(|at| self.list[at].begin_plan(table, running));
    }

    /// Whether the step has room for the next token of a request in this slot.
    pub fn may_decode(&mut self, id: RequestId, slot: u32) -> bool {
        self.of(id).all(|feature| feature.may_decode(slot))
    }

    /// Takes room for logits that are `ahead` tokens beyond the known ones. False if there is none left.
    pub fn reserve(&mut self, id: RequestId, ahead: usize) -> bool {
        self.of(id).all(|feature| feature.reserve(id, ahead))
    }

    /// How many of `count` drafts of a decode the step has room for; takes it.
    pub fn reserve_drafts(&mut self, id: RequestId, count: usize) -> usize {
        match self.members.of(id).is_empty() {
            true => count,
            false => (1..=count).take_while(|ahead| self.reserve(id, *ahead)).count(),
        }
    }

    /// Appends the tokens that surely come next, at most `limit`. False where drafts are of no use.
    pub fn forced_tokens(&mut self, id: RequestId, limit: usize, out: &mut Vec<u32>) -> bool {
        self.of(id).all(|feature| feature.forced_tokens(id, limit, out))
    }

    /// Lowers the limits for a row with these drafts.
    pub fn limit_drafts(&mut self, id: RequestId, drafts: &[u32], limits: &mut DraftLimits) {
        self.of(id).for_each(|feature| feature.limit_drafts(id, drafts, limits));
    }

    /// The tokens that a request's answer is expected to repeat in parts.
    pub fn prediction(&mut self, id: RequestId) -> Option<Arc<[u32]>> {
        self.of(id).find_map(|feature| feature.prediction(id))
    }

    /// The rows of a step are written from now on.
    pub fn begin_step(&mut self) {
        let present = self.members.present();
        let before = std::mem::replace(&mut self.in_step, present);
        before.or(present).for_each(|at| self.list[at].begin_step());
    }

    /// Writes the fields of a row, the `at`th of its step; appends where its features will have their results.
    pub fn write(
        &mut self,
        row: &StepRow<'_>,
        at: usize,
        out: &mut StepBuffers<'_>,
        outputs: &mut Vec<Output>,
    ) {
        for feature in self.members.of(row.request) {
            if let Some(results) = self.list[feature].write(row, out) {
                outputs.push(Output { row: at, feature, results });
            }
        }
    }

    pub fn end_step(&mut self, header: &mut StepHeader) {
        self.in_step.for_each(|at| self.list[at].end_step(header));
    }

    /// Writes what depends on the tokens of the step before; `worked` hears the stage of each feature that had something
    /// to write.
    pub fn fill_late(
        &mut self,
        step: &LateStep<'_>,
        out: &mut StepBuffers<'_>,
        mut worked: impl FnMut(Stage),
    ) -> Result<()> {
        for at in self.in_step {
            if let Some(stage) = self.list[at].fill_late(step, out)? {
                worked(stage);
            }
        }
        Ok(())
    }

    /// Why nothing may be built on a row with this output, if so.
    pub fn fault(&self, output: &Output, results: &StepBuffers<'_>) -> Option<&'static str> {
        self.list[output.feature].fault(results, output.results.clone())
    }

    /// Takes an output of a request.
    pub fn take(&mut self, who: Who, output: &Output, results: &StepBuffers<'_>, outbox: &mut Outbox) {
        self.list[output.feature].take(who, results, output.results.clone(), outbox);
    }

    /// Adds what goes out with the first `taken` tokens of a row with this output.
    pub fn append(
        &self,
        id: RequestId,
        output: &Output,
        results: &StepBuffers<'_>,
        taken: usize,
        outbox: &mut Outbox,
    ) {
        self.list[output.feature].append(id, results, output.results.clone(), taken, outbox);
    }

    /// Decides whether a request takes a sampled token; only a token that one feature lets pass reaches the next.
    pub fn on_token(&mut self, token: &NewToken) -> Taken {
        let mut verdicts = self.of(token.request).map(|feature| feature.on_token(token));
        verdicts.find(|taken| *taken != Taken::Goes).unwrap_or(Taken::Goes)
    }

    /// The token that comes next whatever the model says, if no feature wants it sampled.
    pub fn certain(&mut self, id: RequestId) -> Option<u32> {
        let token = self.of(id).find_map(|feature| feature.certain(id))?;
        (!self.of(id).any(|feature| feature.wants_samples(id))).then_some(token)
    }

    /// Whether a feature is the reason that no token could be sampled; see [`RowFeature::leaves_none`].
    pub fn leaves_none(&mut self, id: RequestId) -> bool {
        self.of(id).any(|feature| feature.leaves_none(id))
    }

    /// Why a feature can go on with a request no further, said once.
    pub fn complaint(&mut self, id: RequestId) -> Option<String> {
        self.of(id).find_map(|feature| feature.complaint(id))
    }

    /// Sends the answer of a request without tokens whose prompt is computed; see [`RowFeature::conclude`].
    pub fn conclude(
        &mut self,
        id: RequestId,
        request: &Request,
        outbox: &mut Outbox,
    ) -> Option<std::result::Result<(), &'static str>> {
        self.of(id).find_map(|feature| feature.conclude(id, request, outbox))
    }

    /// A request was preempted: it will be computed again.
    pub fn begin_again(&mut self, id: RequestId) {
        self.of(id).for_each(|feature| feature.begin_again(id));
    }

    /// What the features count, by name.
    pub fn stats(&self, out: &mut Vec<(String, u64)>) {
        self.list.iter().for_each(|feature| feature.stats(out));
    }

    /// Distributions of the features, by name.
    pub fn histograms(&self, out: &mut Vec<(&'static str, Histogram)>) {
        self.list.iter().for_each(|feature| feature.histograms(out));
    }
}
