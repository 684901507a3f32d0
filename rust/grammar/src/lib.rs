//! Grammars: what an answer may look like, and which tokens may come next.
//!
//! ```text
//!   description (JSON)        Compiler: Rust threads, limits, cache            planner, one per sequence
//!   ─────────────────► ask ──────────────────────────────► Arc<dyn Compiled> ─start─► Box<dyn Grammar>
//!                                                                                        mask, advance,
//!                                                                                        roll_back, forced_tokens
//! ```
//!
//! A description is [lowered](lowering) to the input of one of two [backends], on the threads of the [compiler]. A
//! [`Compiled`] grammar is shared by all requests that bring the same description; a [`Grammar`] is the state of one
//! sequence, and is called from one thread at a time.

pub mod masks;

use std::sync::Arc;

use crate::masks::Mask;
use pyengine_messages::RequestKey;
use pyengine_telemetry::Histogram;

/// A compiled grammar: immutable, shared.
pub trait Compiled: Send + Sync {
    /// The state before the first token.
    fn start(&self) -> Box<dyn Grammar>;

    /// Prepares what its first answers will need, until `stop` says so: on a thread that has nothing else to do.
    fn warm(&self, _stop: &dyn Fn() -> bool) {}

    /// About how many bytes it holds, for the cache.
    fn memory(&self) -> usize;

    /// Which backend it is, for metrics and the log: `index` or `llguidance`.
    fn backend(&self) -> &'static str;

    /// Keywords of the description that are not enforced, where it allows that.
    fn warnings(&self) -> &[String];
}

/// The state of one sequence in its grammar.
pub trait Grammar: Send {
    /// The tokens that may come next, the model's end tokens among them where the text may end; never none. States that
    /// allow the same share one mask, as far as the backend knows.
    fn mask(&mut self) -> Arc<Mask>;

    /// The same if it is known already, so that it takes no longer than a look-up.
    fn known_mask(&mut self) -> Option<Arc<Mask>>;

    /// Appends a token. False, and nothing has changed, if it may not come here.
    fn advance(&mut self, token: u32) -> bool;

    /// Removes the last `tokens` tokens that [`advance`](Self::advance) appended.
    fn roll_back(&mut self, tokens: usize);

    /// Whether the text is complete: only an end token may come, or one has come.
    fn is_terminated(&self) -> bool;

    /// Appends at most `limit` tokens of the forced text, which is the only text that may come next, to `out`. Only the
    /// string is forced, not its tokenization, so the tokens stop where the next one could begin within the text and
    /// end beyond it. O(limit), however long the text is; never leads to a [`failure`](Self::failure).
    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>);

    /// The tokens of the shortest text that completes the answer from here, if they are at most `limit`.
    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>>;

    /// Whether [`closing_tokens`](Self::closing_tokens) surely are at most `limit`, without writing them where that can be
    /// told; they may be where this is false.
    fn closes_within(&mut self, limit: usize) -> bool;

    /// So many tokens may come next whatever they are; a row that ends within them needs no mask.
    fn unbound_tokens(&self) -> u32 {
        0
    }

    /// Why the backend gave up on this answer, if it did: then the masks allow only its end, and it may be incomplete.
    fn failure(&self) -> Option<&str> {
        None
    }
}

/// Why a description was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For the client; names the keyword and its path (`#/properties/a/not`) where there is one.
    pub message: String,
    /// Too much else is being compiled, and the same description may be taken later; otherwise it is an error of the
    /// client.
    pub busy: bool,
    /// What `message` says of a whole grammar, of which one part may be the cause.
    pub reason: Option<String>,
    /// It may be right, but asks for more than can be enforced.
    pub too_much: bool,
}

/// A refusal that says `message`.
pub fn refusal(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), busy: false, reason: None, too_much: false }
}

/// The result of compiling a description.
pub type Verdict = std::result::Result<Arc<dyn Compiled>, Refusal>;

/// Compiles descriptions for the planner, on other threads.
pub trait Compiler: Send {
    /// Asks for the grammar of a tenant's request. Returns it if it is cached; otherwise [`collect`](Self::collect) does
    /// later.
    fn ask(&mut self, key: RequestKey, tenant: u64, description: &[u8]) -> Option<Verdict>;

    /// The request has ended: its verdict is not collected any more.
    fn cancel(&mut self, key: RequestKey);

    /// Appends the verdicts that have come since the last call.
    fn collect(&mut self, verdicts: &mut Vec<(RequestKey, Verdict)>);

    /// Counters and gauges by name.
    fn metrics(&self) -> Vec<(&'static str, u64)>;

    /// Durations of compilations, in nanoseconds.
    fn compile_times(&self) -> Option<Histogram>;
}
