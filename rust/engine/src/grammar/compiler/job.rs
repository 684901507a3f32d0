//! One compilation: its limits, its phases, and what is counted of all.

use std::any::Any;
use std::time::Duration;

use crate::error::panic_message;
use crate::grammar::backends;
use crate::grammar::cancellation::CancelToken;
use crate::grammar::context::GrammarContext;
use crate::grammar::lowering::description::{Description, refusal};
use crate::grammar::{Refusal, Verdict};
use crate::telemetry::{Histogram, TOKEN_BOUNDS_NS};

/// Stack of a thread that compiles: llguidance recurses over schemas and rules.
pub(crate) const STACK: usize = 256 << 20;

/// What compiling may cost.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many threads compile.
    pub threads: usize,
    /// How many descriptions may wait for one.
    pub queue: usize,
    /// How long one may take. One that waits for a thread is refused after twice this.
    pub timeout: Duration,
    /// What the cached verdicts may hold, in bytes.
    pub cache_bytes: usize,
    /// How many threads may be left to finish what took too long.
    pub strays: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { threads: 2, queue: 256, timeout: Duration::from_secs(5), cache_bytes: 256 << 20, strays: 4 }
    }
}

/// What has been compiled, and how.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Asked for and known.
    pub hits: u64,
    /// Asked for and not known.
    pub misses: u64,
    /// Compilations that came to a verdict.
    pub compiles: u64,
    /// Of those and of the ones that got no thread: refusals.
    pub refused: u64,
    /// Jobs that nobody waited for any more.
    pub cancelled: u64,
    /// Jobs whose time was up.
    pub timeouts: u64,
    /// Cached verdicts.
    pub entries: usize,
    /// What they hold, in bytes.
    pub bytes: usize,
    /// Descriptions that wait for a thread.
    pub queued: usize,
    /// Threads that are left to finish what took too long.
    pub strays: usize,
    /// How long compilations took, in nanoseconds.
    pub compile_ns: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            hits: 0,
            misses: 0,
            compiles: 0,
            refused: 0,
            cancelled: 0,
            timeouts: 0,
            entries: 0,
            bytes: 0,
            queued: 0,
            strays: 0,
            compile_ns: Histogram::new(&TOKEN_BOUNDS_NS),
        }
    }
}

/// What a worker does with a description.
pub(crate) fn build(context: &GrammarContext, description: &[u8], watch: &CancelToken) -> Verdict {
    let tokens = context.load().map_err(|error| refusal(error.to_string()))?;
    watch.check()?;
    let description = Description::parse(description)?;
    watch.check()?;
    backends::compile(&tokens, description, watch)
}

pub(crate) fn busy() -> Refusal {
    refusal("too many grammars wait to be compiled; try again later")
}

pub(crate) fn too_long(timeout: Duration) -> Refusal {
    refusal(format!("compiling the grammar takes longer than {} s", timeout.as_secs_f64()))
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Refusal {
    refusal(format!("the grammar cannot be compiled: a panic: {}", panic_message(panic)))
}
