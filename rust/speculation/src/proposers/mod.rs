//! Proposers: where the host finds draft tokens for a sequence. Each is a file here that implements [`Proposer`], a
//! line in [`of_sequence`], and the declaration of its [`Source`].
//!
//! ```text
//!  prediction     follows the output that the client predicts
//!  ngram          the last few tokens earlier in the request
//! ```
//!
//! Forced tokens and those of the draft model need no proposer: the grammar and the device give them.

mod ngram;
mod prediction;

use std::sync::Arc;

use super::source::{Class, Source, Sources};

/// Tokens whose indices keep their memory when a slot is used again.
pub(super) const KEPT: usize = 1 << 14;

/// The text that a draft continues: the tokens of a sequence and forced tokens after them.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    /// All tokens of the sequence so far.
    pub tokens: &'a [u32],
    /// Forced tokens, after which the proposer goes on.
    pub ahead: &'a [u32],
}

impl Text<'_> {
    pub fn len(&self) -> usize {
        self.tokens.len() + self.ahead.len()
    }

    pub fn get(&self, at: usize) -> u32 {
        if at < self.tokens.len() { self.tokens[at] } else { self.ahead[at - self.tokens.len()] }
    }

    /// How many tokens before `end` are those at the end of the text, up to `most`.
    pub fn common_suffix(&self, end: usize, most: usize) -> usize {
        let length = self.len();
        (0..most.min(end).min(length))
            .take_while(|&back| self.get(end - 1 - back) == self.get(length - 1 - back))
            .count()
    }
}

/// A sequence as its proposers see it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub tokens: &'a [u32],
    /// Number of tokens of the prompt, which come first.
    pub prompt_length: usize,
}

impl<'a> View<'a> {
    /// The generated tokens.
    pub fn output(self) -> &'a [u32] {
        &self.tokens[self.prompt_length..]
    }
}

/// A source of drafts on the host, for the sequence of one slot.
pub(super) trait Proposer: Send {
    fn source(&self) -> Source;

    /// A sequence begins, or goes on after preemption, perhaps with an output that the client predicts.
    fn open(&mut self, _sequence: View<'_>, _prediction: Option<&Arc<[u32]>>) {}

    /// The last of the sequence's tokens is new.
    fn append(&mut self, _sequence: View<'_>) {}

    /// Takes in `tokens[at]`; called for every position in order, later than [`append`](Self::append) where indexing
    /// is put off.
    fn index(&mut self, _tokens: &[u32], _at: usize) {}

    /// Forgets the sequence and keeps its memory, up to `KEPT` tokens.
    fn clear(&mut self);

    /// Appends at most `limit` tokens that may follow the sequence and the `forced` tokens after it to `draft`, and
    /// says how good the evidence is.
    fn propose(&self, sequence: View<'_>, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Class;
}

/// The proposers of a slot; of equally good drafts the first one's is taken.
pub(super) fn of_sequence(sources: Sources) -> Vec<Box<dyn Proposer>> {
    let all: [Box<dyn Proposer>; 2] =
        [Box::<prediction::PredictionProposer>::default(), Box::<ngram::NgramIndex>::default()];
    all.into_iter().filter(|proposer| sources.has(proposer.source())).collect()
}
