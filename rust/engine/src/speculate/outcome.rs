//! A step's rows, drafts and time: all that control learns of the device.

/// The outcome of a step that only decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOutcome {
    /// Sequences in it.
    pub rows: usize,
    /// Draft tokens that were verified in it, of all rows.
    pub drafted: usize,
    /// How many of them were accepted.
    pub accepted: usize,
    /// Iterations of the device's draft model in it.
    pub device_iterations: usize,
    /// Tokens that the draft model computed besides, as it had not been asked for them before.
    pub caught_up: usize,
    /// Whether it was planned while [`wants_drafts`](super::Speculator::wants_drafts) held, with drafts or without.
    pub speculative: bool,
    /// From the commit of the step before to its own, as throughput sees it. 0 where that holds more than the step:
    /// a sequence ended or came, or nothing could be planned for a while.
    pub duration_ns: u64,
}
