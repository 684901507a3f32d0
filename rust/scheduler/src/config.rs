//! The planner's limits.

use super::step::buffers::StepLayout;
use pyengine_base::error::{Error, Result};

/// The planner's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannerConfig {
    /// Size of the sequence table: most sequences that run at once.
    pub max_sequences: usize,
    /// Most tokens in one step.
    pub max_tokens_per_step: usize,
    /// Longest prompt and answer together, in tokens.
    pub max_context: usize,
    /// Most requests that wait; one more is refused.
    pub max_waiting: usize,
    /// Most tokens of one prefill in one step; 0 is no cap.
    pub prefill_chunk: usize,
    /// Most tokens of prefills in a step that also decodes, unless three for each request are more; 0 is no cap.
    pub prefill_beside_decodes: usize,
    /// Sequences of more tokens have other rotations: see [`rotation`](super::rotation). 0: all have the same.
    pub short_context: usize,
}

impl PlannerConfig {
    /// `InvalidArgument` for a limit that is none, or that steps of this layout cannot hold.
    pub(super) fn check(&self, layout: &StepLayout) -> Result<()> {
        let PlannerConfig { max_sequences, max_tokens_per_step, max_context, max_waiting, .. } = *self;
        for (name, value) in [
            ("max_sequences", max_sequences),
            ("max_tokens_per_step", max_tokens_per_step),
            ("max_context", max_context),
            ("max_waiting", max_waiting),
        ] {
            if value == 0 || value >= i32::MAX as usize {
                return Err(Error::InvalidArgument(format!("{name} must be at least 1 and below 2**31 - 1")));
            }
        }
        if max_tokens_per_step > layout.max_tokens() {
            return Err(Error::InvalidArgument(format!(
                "max_tokens_per_step is {max_tokens_per_step}, but the step layout holds {} tokens",
                layout.max_tokens()
            )));
        }
        Ok(())
    }
}
