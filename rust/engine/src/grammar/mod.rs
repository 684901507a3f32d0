//! What an answer may look like, and which tokens may come next.
//!
//! ```text
//!   description (JSON)        Compiler: Rust threads, limits, cache            planner, one per sequence
//!   ─────────────────► ask ──────────────────────────────► Arc<dyn Compiled> ─start─► Box<dyn Grammar>
//!                                                                                        fill_mask, advance,
//!                                                                                        roll_back, forced_tokens
//! ```
//!
//! A [`Grammar`] is the state of one sequence; whoever holds it calls it from one thread at a time. A [`Compiled`]
//! grammar is shared by every request that brought the same description.

pub(crate) mod backends;
mod cancellation;
pub mod compiler;
pub mod context;
#[cfg(test)]
mod fuzz;
pub(crate) mod lowering;

use std::sync::Arc;

use crate::messages::RequestKey;
use crate::telemetry::Histogram;

/// A compiled grammar: immutable, shared.
pub trait Compiled: Send + Sync {
    /// The state before the first token.
    fn start(&self) -> Box<dyn Grammar>;

    /// About how many bytes it holds, for the cache.
    fn memory(&self) -> usize;

    /// Which backend it is, for metrics and the log: `index` or `llguidance`.
    fn backend(&self) -> &'static str;

    /// What the description asked for and is not enforced; only where it asked to ignore that.
    fn warnings(&self) -> &[String];
}

/// How far one sequence has come in its grammar.
///
/// Masks have one bit per token id, bit `t % 32` of word `t / 32`; ids that the vocabulary lacks stay 0.
pub trait Grammar: Send {
    /// Overwrites `mask` with the tokens that may come next: where the text may end, the model's end tokens too.
    /// Never all zeros.
    fn fill_mask(&mut self, mask: &mut [u32]);

    /// Takes a token. False, and nothing has changed, if it may not come here.
    fn advance(&mut self, token: u32) -> bool;

    /// Takes back the last `tokens` tokens that [`advance`](Self::advance) took.
    fn roll_back(&mut self, tokens: usize);

    /// Whether the text is complete and nothing but an end token may come, or one has come.
    fn is_terminated(&self) -> bool;

    /// The text that is the only way on; empty where there is a choice. Of a long one perhaps only the beginning.
    fn forced_text(&mut self) -> Vec<u8>;

    /// At most `limit` tokens of the forced text, appended to `out`: the string is forced, its tokenization is not,
    /// so it stops where the next token could begin inside of the text and end beyond it. What that takes grows with
    /// `limit`, not with the text, and it never leads to a [`failure`](Self::failure).
    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>);

    /// Tokens of a short text that completes the answer from here, at most `limit` of them, if one is found.
    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>>;

    /// Why the backend gave up on this answer, if it did: the masks allow its end only, and it may be incomplete.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// A state of its own that has come as far, for an embedder who tries several ways on; the planner starts each of
    /// `n` answers to one prompt by [`Compiled::start`].
    fn fork(&self) -> Box<dyn Grammar>;
}

/// Why a description was refused: the client's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// In words for the client; names the keyword and its path (`#/properties/a/not`) where there is one.
    pub message: String,
}

/// What compiling a description led to.
pub type Verdict = std::result::Result<Arc<dyn Compiled>, Refusal>;

/// Turns descriptions into grammars for the planner, on other threads.
pub trait Compiler: Send {
    /// Asks for the grammar of a request; at once if it is known, else [`collect`](Self::collect) brings it later.
    fn ask(&mut self, key: RequestKey, description: &[u8]) -> Option<Verdict>;

    /// The request has gone; nothing more is said about it.
    fn cancel(&mut self, key: RequestKey);

    /// Appends the verdicts that have come since the last call.
    fn collect(&mut self, verdicts: &mut Vec<(RequestKey, Verdict)>);

    /// Figures by name, for metrics.
    fn figures(&self) -> Vec<(&'static str, u64)>;

    /// How long compilations took, in nanoseconds.
    fn compile_times(&self) -> Option<Histogram>;
}
