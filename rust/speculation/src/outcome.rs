//! A step's rows, drafts and time: all that control learns of the device.

/// The outcome of a step in which rows decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepOutcome {
    /// Sequences that decode in it.
    pub rows: usize,
    /// Tokens of prompts in it.
    pub prompt_tokens: usize,
    /// Draft tokens that were verified in it, of all rows.
    pub drafted: usize,
    /// How many of them were accepted.
    pub accepted: usize,
    /// Iterations of the device's draft model in it.
    pub device_iterations: usize,
    /// Tokens that the draft model computed besides, as it had not been asked for them before.
    pub caught_up: usize,
    /// Whether it was planned while drafts were wanted, with drafts or without.
    pub speculative: bool,
    /// Nanoseconds that the device worked on it, by the device's own clock; 0 where it does not tell.
    pub busy_ns: u64,
    /// Nanoseconds that the device waited for the host, before the step and in it. None where that has other reasons: a
    /// sequence ended, or nothing could be planned for a while.
    pub idle_ns: Option<u64>,
}

impl StepOutcome {
    /// Whether the draft model computed much that belongs to steps before.
    pub(super) fn catches_up(&self) -> bool {
        self.caught_up > 2 * self.rows
    }
}
