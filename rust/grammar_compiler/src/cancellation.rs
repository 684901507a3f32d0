//! Cancels a compilation: its thread checks the token between phases that cannot be interrupted, and often within those
//! that can. O(1).

use std::sync::atomic::{AtomicBool, Ordering};

use pyengine_base::memory;
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// How much memory one compilation may hold, in MiB.
const MAX_MIB: usize = 128;

/// Whether a compilation goes on: it was not cancelled, and has not taken too much memory.
#[derive(Debug, Default)]
pub struct CancelToken {
    cancelled: AtomicBool,
    too_large: AtomicBool,
}

impl CancelToken {
    /// Ends the compilation at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// To be called on the thread that compiles.
    ///
    /// # Errors
    /// A refusal, if the compilation was cancelled, or was ever found to hold too much memory.
    pub fn check(&self) -> Result<(), Refusal> {
        if memory::held() > MAX_MIB << 20 {
            self.too_large.store(true, Ordering::Relaxed);
        }
        if self.too_large.load(Ordering::Relaxed) {
            return Err(refusal(format!("compiling the grammar takes more than {MAX_MIB} MiB of memory")));
        }
        if self.is_cancelled() { Err(refusal("compiling the grammar was cancelled")) } else { Ok(()) }
    }
}
