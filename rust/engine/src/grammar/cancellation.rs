//! Cancels a compilation: its thread checks the token between phases that cannot be interrupted. O(1).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::grammar::Refusal;
use crate::grammar::lowering::description::refusal;

/// Whether a compilation was cancelled.
#[derive(Debug, Default)]
pub struct CancelToken {
    cancelled: AtomicBool,
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

    /// # Errors
    /// A refusal, if the compilation was cancelled.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.is_cancelled() { Err(refusal("compiling the grammar was cancelled")) } else { Ok(()) }
    }
}
