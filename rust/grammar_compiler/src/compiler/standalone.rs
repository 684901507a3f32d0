//! Compiles one description for a caller that waits, without an engine: on a new thread each time. The number of threads
//! that have timed out and are still running is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::cancellation::CancelToken;
use crate::compiler::job::{STACK, build, busy, panicked, too_long};
use crate::context::GrammarContext;
use pyengine_base::memory;
use pyengine_grammar::Verdict;
use pyengine_grammar::refusal;

/// How many threads of [`compile_within`] that have timed out may still be running.
const MAX_ABANDONED: usize = 16;

/// Compiles one description on a new thread and waits at most `timeout` for it; loading the tokenizer comes before.
///
/// # Errors
/// Why the description was refused: its mistake, the timeout, or too many abandoned threads.
pub fn compile_within(context: &Arc<GrammarContext>, description: &[u8], timeout: Duration) -> Verdict {
    run_within(build, context, description, timeout)
}

/// [`compile_within`] with the function that compiles, which a test replaces.
pub(super) fn run_within(
    build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
    context: &Arc<GrammarContext>,
    description: &[u8],
    timeout: Duration,
) -> Verdict {
    static ABANDONED: AtomicUsize = AtomicUsize::new(0);
    const RUNNING: u8 = 0;
    const LEFT: u8 = 1;
    const DONE: u8 = 2;

    context.load().map_err(|error| refusal(error.to_string()))?;
    if ABANDONED.load(Ordering::Relaxed) >= MAX_ABANDONED {
        return Err(busy());
    }
    let (sender, receiver) = mpsc::channel();
    let shared = Arc::new((AtomicU8::new(RUNNING), CancelToken::default()));
    let (own, context, description) = (shared.clone(), context.clone(), description.to_vec());
    let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(move || {
        memory::measure();
        let verdict = catch_unwind(AssertUnwindSafe(|| build(&context, &description, &own.1)));
        let _ = sender.send(verdict.unwrap_or_else(|panic| Err(panicked(&*panic))));
        if own.0.swap(DONE, Ordering::AcqRel) == LEFT {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    });
    thread.map_err(|error| refusal(format!("no thread for the grammar: {error}")))?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        ABANDONED.fetch_add(1, Ordering::Relaxed);
        shared.1.cancel();
        if shared.0.swap(LEFT, Ordering::AcqRel) == DONE {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
        Err(too_long(timeout))
    })
}
