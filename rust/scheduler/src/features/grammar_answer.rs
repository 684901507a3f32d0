//! One request with masks: its grammar, from its start to its end, and the tokens that it allows.

use std::sync::Arc;
use std::time::Instant;

use super::closing::Closing;
use super::masks::{Allowed, Job, elapsed_ns};
use super::row_feature::NewToken;
use super::thinking_budget::{Anything, Budgeted, ThinkingBudget};
use crate::queue::requests::Taken;
use crate::step::sequence_table::RequestId;
use pyengine_grammar::masks::Mask;
use pyengine_grammar::{Compiled, Grammar, Verdict};
use pyengine_messages::{FinishReason, RequestKey, Submit};

/// Time that a grammar may take at its beginning, when its automata are built, ...
const GRAMMAR_NS: u64 = 2_000_000_000;
/// ... and for each token besides: more, and every stream would be held up for one.
const GRAMMAR_NS_PER_TOKEN: u64 = 5_000_000;

/// The state of a request with masks.
pub(super) struct Answer {
    pub(super) key: RequestKey,
    pub(super) tenant: u64,
    prompt_length: u32,
    min_tokens: u32,
    /// The tokens that it allows at all; none where those are all.
    allowed: Option<Arc<Mask>>,
    /// It has a grammar, its own or that of its thinking budget.
    pub(super) constrained: bool,
    /// Its thinking budget, until it is started.
    budget: Option<ThinkingBudget>,
    /// The grammar's description, until it is asked for.
    pub(super) description: Option<Vec<u8>>,
    /// What its compiler says of its grammar, until the request is started.
    pub(super) verdict: Option<Verdict>,
    /// How far the answer has come in it, at the last known token. None while it compiles or its masks are filled.
    pub(super) grammar: Option<Box<dyn Grammar>>,
    /// Time that its masks and tokens have taken.
    pub(super) spent_ns: u64,
    /// Why its grammar can be followed no further.
    pub(super) complaint: Option<String>,
    /// Ends what the grammar has begun before the request's limit.
    closing: Option<Closing>,
    /// What may come next, where it was looked up after the last token.
    next: Option<Arc<Mask>>,
}

impl Answer {
    /// The state of a request before its grammar is there, which has a `description` and is closed in time if `close`.
    /// `allowed` are the tokens that it allows, if not all, and `budget` is that of its reasoning.
    pub(super) fn new(
        submit: &Submit,
        description: Option<Vec<u8>>,
        close: bool,
        allowed: Option<Vec<u32>>,
        budget: Option<ThinkingBudget>,
    ) -> Self {
        Self {
            key: submit.key,
            tenant: submit.tenant,
            prompt_length: submit.prompt_length,
            min_tokens: submit.min_tokens,
            allowed: allowed.map(|allowed| Arc::new(Mask::of(allowed))),
            constrained: description.is_some() || budget.is_some(),
            budget,
            description,
            verdict: None,
            grammar: None,
            spent_ns: 0,
            complaint: None,
            closing: close.then(Closing::default),
            next: None,
        }
    }

    /// A request without a grammar of its own begins, behind `generated` tokens from before a restart.
    pub(super) fn start_free(&mut self, anything: &Arc<Mask>, generated: &[u32]) {
        if let Some(budget) = self.budget.take() {
            let mut grammar = Budgeted::new(budget, Box::new(Anything(anything.clone())));
            generated.iter().for_each(|token| _ = grammar.advance(*token));
            // What a mask forbids must not depend on whether the row has one.
            self.min_tokens = 0;
            self.grammar = Some(Box::new(grammar));
        }
    }

    /// Whether the next `ahead` tokens and one more may be any, so that what is sampled behind them needs no mask.
    pub(super) fn is_unbound(&self, ahead: u32) -> bool {
        let grammar = self.grammar.as_ref().filter(|_| self.allowed.is_none());
        grammar.is_some_and(|grammar| ahead < grammar.unbound_tokens())
    }

    /// The grammar is there, with `generated` tokens from before a restart and `left` that may come; `end` ends an answer.
    /// Returns how the request ends at once, if it does.
    pub(super) fn start(
        &mut self,
        compiled: &dyn Compiled,
        generated: &[u32],
        left: u32,
        end: Option<u32>,
    ) -> Option<FinishReason> {
        let mut grammar = compiled.start();
        if let Some(budget) = self.budget.take() {
            grammar = Box::new(Budgeted::new(budget, grammar));
        }
        let sound = generated.iter().all(|token| grammar.advance(*token));
        let ended = grammar.is_terminated();
        if let Some(closing) = self.closing.as_mut().filter(|_| sound && !ended && left > 0) {
            closing.look(grammar.as_mut(), left, end);
            if generated.is_empty() {
                self.complaint = closing.complaint(grammar.as_mut(), left, end);
            }
            if self.complaint.is_some() {
                return Some(FinishReason::Refused);
            }
        }
        self.grammar = Some(grammar);
        match (sound, ended, left) {
            (false, ..) => Some(FinishReason::Error),
            (_, true, _) => Some(FinishReason::Stop),
            (.., 0) => Some(FinishReason::Length),
            _ => None,
        }
    }

    /// The mask of what comes next, if it takes no longer than a look-up.
    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        self.next.take().or_else(|| self.grammar.as_mut()?.known_mask())
    }

    /// The only token that may come next, where the answer is being closed.
    pub(super) fn only(&self) -> Option<u32> {
        self.closing.as_ref().and_then(Closing::next)
    }

    /// The only token that may come next, if that is known without work.
    pub(super) fn certain(&mut self) -> Option<u32> {
        if self.allowed.is_some() {
            // Of the tokens that the request allows it may be none.
            return None;
        }
        if self.only().is_some() {
            return self.only();
        }
        self.next = self.known_mask();
        self.next.as_ref()?.single()
    }

    /// Whether the grammar takes none of the tokens that the request allows; the complaint says so then.
    pub(super) fn leaves_none(&mut self) -> bool {
        let (Some(allowed), Some(grammar)) = (&self.allowed, &mut self.grammar) else { return false };
        let mask = self.next.take().unwrap_or_else(|| grammar.mask());
        let listed = allowed.listed(usize::MAX).unwrap_or_default();
        let left = listed.into_iter().any(|token| mask.has(token));
        if !left {
            self.complaint = Some("'allowed_token_ids' has no token that the grammar takes here".into());
        }
        !left
    }

    fn is_over_time(&self, generated: u32) -> bool {
        self.spent_ns > GRAMMAR_NS + u64::from(generated) * GRAMMAR_NS_PER_TOKEN
    }

    /// Takes a sampled token in. A grammar that allows nothing else ends the request whatever `min_tokens` says.
    pub(super) fn on_token(&mut self, new: &NewToken, end_tokens: &[u32]) -> Taken {
        // Tokens behind a draft were sampled without the mask that closes the answer.
        if new.nth > 0 && self.only().is_some_and(|only| only != new.token) {
            return Taken::GivenBack;
        }
        let Some(grammar) = &mut self.grammar else { return Taken::Goes };
        let begun = Instant::now();
        self.next = None;
        if self.complaint.is_none() && !grammar.advance(new.token) {
            // The sampler saw a mask that forbids it.
            self.complaint = Some("a token was chosen that the grammar forbids".into());
            return Taken::Ends(FinishReason::Error, None);
        }
        self.spent_ns += elapsed_ns(begun);
        if let Some(failure) = grammar.failure() {
            // Its masks allowed only the end, wherever that was: the answer may be cut off.
            self.complaint = Some(format!("the grammar cannot be followed: {failure}"));
        }
        let ended = grammar.is_terminated();
        if self.complaint.is_none() && self.is_over_time(new.generated) {
            self.complaint = Some("the grammar cannot be followed: it takes too much time".into());
        }
        if self.complaint.is_some() {
            return Taken::Ends(FinishReason::Refused, None);
        }
        if ended {
            let stop_token = end_tokens.contains(&new.token).then_some(new.token);
            return Taken::Ends(FinishReason::Stop, stop_token);
        }
        let end = end_tokens.first().copied();
        let fits = match (&mut self.closing, &mut self.grammar) {
            (Some(closing), Some(grammar)) => closing.advance(grammar.as_mut(), new.token, new.left, end),
            _ => true,
        };
        if fits { Taken::Goes } else { Taken::GivenBack }
    }

    /// How the masks of its row are found, which begin at `first_logit`, where its sequence has `known` tokens.
    pub(super) fn look<'a>(
        &mut self,
        request: RequestId,
        known: u32,
        first_logit: usize,
        drafts: &'a [u32],
    ) -> Look<'a> {
        if let Some(only) = self.only() {
            // An answer that is being closed has no drafts.
            let mask = Arc::new(Mask::of(vec![only]));
            return Look::Known(Allowed::Tokens { mask, only: self.allowed.clone(), held: false });
        }
        if !self.constrained {
            let Some(mask) = self.allowed.clone() else { return Look::Dropped };
            return Look::Known(Allowed::Tokens { mask, only: None, held: false });
        }
        let next = known + 1 - self.prompt_length;
        let held = self.min_tokens.saturating_sub(next) as usize;
        if drafts.is_empty()
            && let Some(mask) = self.known_mask()
        {
            return Look::Known(Allowed::Tokens { mask, only: self.allowed.clone(), held: held > 0 });
        }
        let Some(grammar) = self.grammar.take() else { return Look::Dropped };
        let allowed = Vec::with_capacity(drafts.len() + 1);
        let only = self.allowed.clone();
        Look::Job(Job {
            request,
            grammar,
            only,
            held,
            drafts,
            first_logit,
            allowed,
            spent_ns: 0,
            complaint: None,
        })
    }
}

/// How the masks of a row are found.
pub(super) enum Look<'a> {
    Known(Allowed),
    Job(Job<'a>),
    /// Its sequence has ended meanwhile, or its token is known.
    Dropped,
}
