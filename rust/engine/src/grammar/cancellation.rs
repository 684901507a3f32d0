//! How a compilation is called off: whoever compiles looks here between what cannot be interrupted. O(1).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::grammar::Refusal;
use crate::grammar::lowering::description::refusal;

/// Whether somebody still waits for a compilation.
#[derive(Debug, Default)]
pub struct CancelToken {
    cancelled: AtomicBool,
}

impl CancelToken {
    /// Asks for an end at the next look.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether an end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// A refusal if an end was asked for.
    ///
    /// # Errors
    /// That refusal.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.is_cancelled() { Err(refusal("nobody waits for the grammar any more")) } else { Ok(()) }
    }
}
