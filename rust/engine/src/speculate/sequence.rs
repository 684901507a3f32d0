//! What the speculator keeps of one sequence: its tokens, their indices, and the draft that is being judged.
//!
//! ```text
//!  tokens   [ prompt ............ | output ....... ]
//!            └ in the indices ───────┘└ put off: a long prompt is indexed in pieces
//!  shadow                          the last draft, sent or not ─► compared with the tokens that come
//! ```
//!
//! A draft token is accepted exactly if it is the token that comes anyway, so that every draft of the host can be
//! judged by waiting, at no cost to the device. O(1) on average a token.

use std::sync::Arc;

use super::acceptance::{Acceptance, Personal};
use super::draft::{Class, Proposer, Segments, Text};
use super::proposers::automaton::Automaton;
use super::proposers::history::History;
use super::proposers::ngram::NgramIndex;
use super::proposers::prediction::Prediction;
use super::proposers::suffix::{Standing, Suffixes};
use super::{Source, SpeculationConfig};

/// Tokens whose indices keep their memory when the slot is used again.
const KEPT: usize = 1 << 14;

/// Tokens before the end of a text that are looked up in its tenant's history when the sequence is opened.
const LOOKED_UP: usize = 64;

/// A draft that is compared with the tokens that come.
#[derive(Default)]
struct Shadow {
    draft: Vec<u32>,
    segments: Segments,
    judged: usize,
    live: bool,
}

/// A sequence in its slot.
#[derive(Default)]
pub(super) struct Sequence {
    pub open: bool,
    /// Drafts are made for it while none are sent.
    pub watched: bool,
    pub tenant: u64,
    pub personal: Personal,
    tokens: Vec<u32>,
    prompt_length: usize,
    /// So many tokens are in the indices.
    indexed: usize,
    ngram: NgramIndex,
    own: Automaton,
    standing: Standing,
    prediction: Option<Prediction>,
    shadow: Shadow,
    /// Tokens since the last draft was begun.
    since: usize,
}

/// What all sequences have in common when a draft is made.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub config: &'a SpeculationConfig,
    pub history: &'a History,
    pub acceptance: &'a Acceptance,
}

/// Of one source, to be compared with the others.
struct Best {
    source: Source,
    class: Class,
    gain: f32,
}

impl Sequence {
    pub fn open(
        &mut self,
        config: &SpeculationConfig,
        history: &History,
        tenant: u64,
        tokens: &[u32],
        prompt_length: usize,
        prediction: Option<Arc<[u32]>>,
    ) {
        self.clear();
        self.open = true;
        self.tenant = tenant;
        self.tokens.extend_from_slice(tokens);
        self.prompt_length = prompt_length.min(tokens.len());
        if config.suffix {
            let begin = tokens.len().saturating_sub(LOOKED_UP);
            self.standing.advance(history, tenant, &tokens[begin..]);
        }
        self.prediction = prediction.filter(|_| config.prediction).map(Prediction::new);
        if let Some(prediction) = &mut self.prediction {
            let output = &self.tokens[self.prompt_length..];
            (1..=output.len()).for_each(|end| prediction.append(&output[..end]));
        }
    }

    /// Forgets the sequence and keeps its memory, within bounds.
    pub fn clear(&mut self) {
        (self.open, self.watched) = (false, false);
        self.personal = Personal::default();
        self.tokens.clear();
        self.tokens.shrink_to(KEPT);
        self.prompt_length = 0;
        self.indexed = 0;
        self.ngram.clear(KEPT);
        self.own.clear(KEPT);
        self.standing = Standing::default();
        self.prediction = None;
        self.shadow.live = false;
        self.shadow.segments = Segments::default();
        self.since = 0;
    }

    /// What it has generated.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_length..]
    }

    /// Tokens that are not in the indices yet.
    pub fn behind(&self) -> usize {
        self.tokens.len() - self.indexed
    }

    /// Indexes at most `budget` tokens; how many it were.
    pub fn index(&mut self, config: &SpeculationConfig, budget: usize) -> usize {
        let begin = self.indexed;
        self.indexed = self.tokens.len().min(begin + budget);
        for at in begin..self.indexed {
            if config.ngram {
                self.ngram.append(&self.tokens, at);
            }
            if config.suffix {
                self.own.append(self.tokens[at]);
            }
        }
        self.indexed - begin
    }

    /// A token comes: the last draft is judged by it.
    pub fn append(
        &mut self,
        history: &History,
        config: &SpeculationConfig,
        token: u32,
        all: &mut Acceptance,
    ) {
        self.judge(token, all);
        self.since += 1;
        self.tokens.push(token);
        if config.suffix {
            self.standing.advance(history, self.tenant, &[token]);
        }
        if let Some(prediction) = &mut self.prediction {
            prediction.append(&self.tokens[self.prompt_length..]);
        }
    }

    fn judge(&mut self, token: u32, all: &mut Acceptance) {
        let shadow = &mut self.shadow;
        if !shadow.live {
            return;
        }
        let accepted = shadow.draft[shadow.judged] == token;
        if let Some((segment, position)) = shadow.segments.positions().nth(shadow.judged) {
            all.judge(&mut self.personal, segment, position, accepted);
        }
        shadow.judged += 1;
        shadow.live = accepted && shadow.judged < shadow.draft.len();
    }

    /// Whether the last draft has been judged as far as it can be, and some tokens have come since.
    pub fn wants_shadow(&self) -> bool {
        !self.shadow.live && self.since >= 4
    }

    /// What was last proposed.
    pub fn proposed(&self) -> &Segments {
        &self.shadow.segments
    }

    /// Appends forced tokens and what the best source adds after them, at most `limit`.
    pub fn propose(
        &mut self,
        common: Common<'_>,
        forced: &[u32],
        limit: usize,
        draft: &mut Vec<u32>,
        scratch: &mut Vec<u32>,
    ) -> Segments {
        let begin = draft.len();
        let forced = &forced[..forced.len().min(limit)];
        draft.extend_from_slice(forced);
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, forced.len());
        if let Some(best) = self.best(common, forced, limit - forced.len(), draft, scratch) {
            segments.push(best.source, best.class, draft.len() - begin - forced.len());
        }
        let shadow = &mut self.shadow;
        shadow.draft.clear();
        shadow.draft.extend_from_slice(&draft[begin..]);
        shadow.segments = segments;
        (shadow.judged, shadow.live) = (0, draft.len() > begin);
        self.since = 0;
        segments
    }

    /// Appends the draft of the source with the greatest expected gain.
    fn best(
        &self,
        common: Common<'_>,
        forced: &[u32],
        limit: usize,
        draft: &mut Vec<u32>,
        scratch: &mut Vec<u32>,
    ) -> Option<Best> {
        let Common { config, history, acceptance } = common;
        let text = Text { tokens: &self.tokens, ahead: forced };
        let mut contest =
            Contest { acceptance, personal: &self.personal, limit, begin: draft.len(), best: None };
        if let Some(prediction) = &self.prediction {
            let output = Text { tokens: self.output(), ahead: forced };
            contest.enter(prediction, output, draft, scratch);
        }
        if config.suffix {
            let own = (self.behind() == 0).then_some(&self.own);
            let suffixes = Suffixes { own, history, tenant: self.tenant, standing: self.standing };
            contest.enter(&suffixes, text, draft, scratch);
        }
        if config.ngram {
            contest.enter(&self.ngram, text, draft, scratch);
        }
        contest.best
    }
}

/// Sources that propose for the same place.
struct Contest<'a> {
    acceptance: &'a Acceptance,
    personal: &'a Personal,
    limit: usize,
    /// Where the best draft so far begins.
    begin: usize,
    best: Option<Best>,
}

impl Contest<'_> {
    fn enter<P: Proposer>(
        &mut self,
        proposer: &P,
        text: Text<'_>,
        draft: &mut Vec<u32>,
        scratch: &mut Vec<u32>,
    ) {
        scratch.clear();
        let class = proposer.propose(text, self.limit, scratch);
        let mut segments = Segments::default();
        segments.push(P::SOURCE, class, scratch.len());
        let mut whole = 1.0;
        let gain = segments
            .positions()
            .map(|(segment, position)| {
                whole *= self.acceptance.probability(self.personal, segment, position);
                whole
            })
            .sum();
        if !scratch.is_empty() && self.best.as_ref().is_none_or(|best| best.gain < gain) {
            draft.truncate(self.begin);
            draft.extend_from_slice(scratch);
            self.best = Some(Best { source: P::SOURCE, class, gain });
        }
    }
}
