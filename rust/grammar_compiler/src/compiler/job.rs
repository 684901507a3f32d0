//! One compilation: its limits, its phases, and the counters.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backends;
use crate::cancellation::CancelToken;
use crate::compiler::blame;
use crate::context::GrammarContext;
use crate::lowering::description::Description;
use pyengine_base::error::panic_message;
use pyengine_grammar::refusal;
use pyengine_grammar::{Compiled, Refusal, Verdict};
use pyengine_telemetry::{Histogram, TOKEN_BOUNDS_NS};

/// Stack of a compiling thread: llguidance recurses over schemas and rules.
pub(crate) const STACK: usize = 256 << 20;
/// A request waits this many times as long as a compilation may take, which a busy machine gives little time.
pub(crate) const WAITS: u32 = 4;
/// How long a thread that nothing waits for prepares the grammar that it has compiled.
const PREPARE_FOR: Duration = Duration::from_millis(50);

/// Makes the masks that the first answers of a grammar will need, within a number and a time, until `stop` says so.
pub fn prepare(compiled: &Arc<dyn Compiled>, stop: impl Fn() -> bool) {
    let begun = Instant::now();
    compiled.warm(&|| begun.elapsed() > PREPARE_FOR || stop());
}

/// Limits of compiling.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many threads compile, slow ones aside.
    pub threads: usize,
    /// The stack of a thread that compiles, in bytes.
    pub stack: usize,
    /// How many descriptions may wait for a thread; half of them may be one tenant's.
    pub queue: usize,
    /// A compilation that has taken so much CPU time is slow: it goes on at a lower priority, and another thread takes
    /// its place.
    pub slow_after: Duration,
    /// How many compilations may be slow, those that have timed out and are still running among them. Where there are so
    /// many, one that takes long keeps its place.
    pub max_slow: usize,
    /// How much CPU time a compilation may take. A request waits [`WAITS`] times as long for it.
    pub timeout: Duration,
    /// The size of the cache, in bytes.
    pub cache_bytes: usize,
}

impl Settings {
    /// How many compilations of one tenant may be under way at once.
    pub(crate) fn share(&self) -> usize {
        (self.threads + self.max_slow).div_ceil(2)
    }

    /// Until when a request that comes now waits.
    pub(crate) fn patience(&self) -> Instant {
        Instant::now() + WAITS * self.timeout
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 2,
            stack: STACK,
            queue: 512,
            slow_after: Duration::from_millis(50),
            max_slow: 4,
            timeout: Duration::from_secs(5),
            cache_bytes: 256 << 20,
        }
    }
}

/// Counters, and the present state of cache and queue.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Descriptions that were in the cache.
    pub hits: u64,
    /// Descriptions that were not.
    pub misses: u64,
    /// Compilations that ended.
    pub compiles: u64,
    /// Refusals: by a compilation, for want of a thread, or because the time was up.
    pub refused: u64,
    /// Jobs that ended because all their requests were cancelled.
    pub cancelled: u64,
    /// Jobs whose time was up.
    pub timeouts: u64,
    /// Cached verdicts.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Descriptions that wait for a thread.
    pub queued: usize,
    /// Compilations that have become slow and are still running.
    pub slow: usize,
    /// Threads that have timed out and are still running.
    pub abandoned: usize,
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
            slow: 0,
            abandoned: 0,
            compile_ns: Histogram::new(&TOKEN_BOUNDS_NS),
        }
    }
}

/// Compiles a description: parse, lower, build.
pub(crate) fn build(context: &GrammarContext, description: &[u8], cancel: &CancelToken) -> Verdict {
    let tokens = context.load().map_err(|error| refusal(error.to_string()))?;
    cancel.check()?;
    let parsed = Description::parse(description)?;
    cancel.check()?;
    let compile = |description| backends::compile(&tokens, description, cancel);
    compile(parsed).or_else(|refused| match &refused.reason {
        Some(_) => Err(blame::placed(refused, Description::parse(description)?, compile)),
        None => Err(refused),
    })
}

pub(crate) fn busy() -> Refusal {
    Refusal { busy: true, ..refusal("too many grammars wait to be compiled; try again later") }
}

/// The refusal of a request where no thread can be started.
pub(crate) fn no_threads() -> Refusal {
    Refusal {
        busy: true,
        ..refusal("the machine starts no thread for grammars: its limits of memory or processes")
    }
}

/// The refusal of a request that has waited too long for a compilation that goes on.
pub(crate) fn under_way() -> Refusal {
    let message =
        "the machine is busy, and the grammar is still being compiled; try again later, when it is known";
    Refusal { busy: true, ..refusal(message) }
}

pub(crate) fn too_long(timeout: Duration) -> Refusal {
    refusal(format!("compiling the grammar takes longer than {} s", timeout.as_secs_f64()))
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Refusal {
    refusal(format!("the grammar cannot be compiled: a panic: {}", panic_message(panic)))
}
