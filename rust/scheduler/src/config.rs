//! The planner's limits.

use super::step::layout::StepLayout;
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
    /// Tokens of prompt and answer from one snapshot of states to the next, a multiple of the block size; 0: none are taken
    /// for that. Nothing where no layer has a state.
    pub snapshot_interval: usize,
}

impl PlannerConfig {
    /// Sequences that run at once: each must find a row and a token in every step.
    pub(super) fn concurrency(&self, layout: &StepLayout) -> usize {
        self.max_sequences.min(layout.max_rows()).min(self.max_tokens_per_step)
    }

    /// `InvalidArgument` for a limit that is none, or that steps of this layout cannot hold.
    pub(super) fn check(&self, layout: &StepLayout) -> Result<()> {
        let PlannerConfig {
            max_sequences,
            max_tokens_per_step,
            max_context,
            max_waiting,
            snapshot_interval,
            ..
        } = *self;
        for (name, value) in [
            ("max_sequences", max_sequences),
            ("max_tokens_per_step", max_tokens_per_step),
            ("max_context", max_context),
            ("max_waiting", max_waiting),
            ("snapshot_interval", snapshot_interval.max(1)),
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
