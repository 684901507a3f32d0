//! The speculator's state of one sequence: its tokens, its proposers, and the draft that is being judged.
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
use super::draft::Segments;
use super::proposers::{KEPT, Proposer, View, of_sequence};
use super::source::{Class, Source, Sources};

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
    pub personal: Personal,
    tokens: Vec<u32>,
    prompt_length: usize,
    /// Number of tokens that are in the indices.
    indexed: usize,
    proposers: Vec<Box<dyn Proposer>>,
    shadow: Shadow,
    /// Tokens since the last draft was begun.
    since: usize,
}

/// The best of one source, to be compared with the others.
struct Best {
    source: Source,
    class: Class,
    gain: f32,
}

impl Sequence {
    /// A slot without a sequence.
    pub fn new(sources: Sources) -> Self {
        Self { proposers: of_sequence(sources), ..Self::default() }
    }

    pub fn open(&mut self, tokens: &[u32], prompt_length: usize, prediction: Option<&Arc<[u32]>>) {
        self.clear();
        self.open = true;
        self.tokens.extend_from_slice(tokens);
        self.prompt_length = prompt_length.min(tokens.len());
        let (view, proposers) = self.split();
        proposers.iter_mut().for_each(|proposer| proposer.open(view, prediction));
    }

    /// The text that the proposers see, and the proposers.
    fn split(&mut self) -> (View<'_>, &mut [Box<dyn Proposer>]) {
        let Self { tokens, prompt_length, proposers, .. } = self;
        (View { tokens, prompt_length: *prompt_length }, proposers)
    }

    /// Forgets the sequence and keeps its memory, within bounds.
    pub fn clear(&mut self) {
        (self.open, self.watched) = (false, false);
        self.personal = Personal::default();
        self.tokens.clear();
        self.tokens.shrink_to(KEPT);
        self.prompt_length = 0;
        self.indexed = 0;
        self.proposers.iter_mut().for_each(|proposer| proposer.clear());
        self.shadow.live = false;
        self.shadow.segments = Segments::default();
        self.since = 0;
    }

    /// The tokens that it has generated.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_length..]
    }

    /// Tokens that are not in the indices yet.
    pub fn behind(&self) -> usize {
        self.tokens.len() - self.indexed
    }

    /// Indexes at most `budget` tokens; how many it were.
    pub fn index(&mut self, budget: usize) -> usize {
        let begin = self.indexed;
        self.indexed = self.tokens.len().min(begin + budget);
        for proposer in &mut self.proposers {
            (begin..self.indexed).for_each(|at| proposer.index(&self.tokens, at));
        }
        self.indexed - begin
    }

    /// A token comes: the last draft is judged by it.
    pub fn append(&mut self, token: u32, all: &mut Acceptance) {
        self.judge(token, all);
        self.since += 1;
        self.tokens.push(token);
        let (view, proposers) = self.split();
        proposers.iter_mut().for_each(|proposer| proposer.append(view));
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

    /// The last proposal.
    pub fn proposed(&self) -> &Segments {
        &self.shadow.segments
    }

    /// Appends forced tokens and what the best source adds after them, at most `limit`.
    pub fn propose(
        &mut self,
        acceptance: &Acceptance,
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
        if let Some(best) = self.best(acceptance, forced, limit - forced.len(), draft, scratch) {
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
        acceptance: &Acceptance,
        forced: &[u32],
        limit: usize,
        draft: &mut Vec<u32>,
        scratch: &mut Vec<u32>,
    ) -> Option<Best> {
        let view = View { tokens: &self.tokens, prompt_length: self.prompt_length };
        let (begin, mut best) = (draft.len(), None::<Best>);
        for proposer in &self.proposers {
            scratch.clear();
            let class = proposer.propose(view, forced, limit, scratch);
            let mut segments = Segments::default();
            segments.push(proposer.source(), class, scratch.len());
            let mut whole = 1.0;
            let gains = segments.positions().map(|(segment, position)| {
                whole *= acceptance.probability(&self.personal, segment, position);
                whole
            });
            let gain = gains.sum();
            if !scratch.is_empty() && best.as_ref().is_none_or(|best| best.gain < gain) {
                draft.truncate(begin);
                draft.extend_from_slice(scratch);
                best = Some(Best { source: proposer.source(), class, gain });
            }
        }
        best
    }
}
