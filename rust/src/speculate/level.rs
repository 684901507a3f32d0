//! What is known for about so many rows, and whether drafts pay there.
//!
//! ```text
//!            next probe due,                  pays
//!   ┌─ Off ─ or drafts promise ──► Probe ──────────────► On ◄──────── plain steps ─┐
//!   └───◄── does not pay: wait twice as long ─┴─◄────────┴─┴── now and then ► Check ─┘
//! ```

use super::cost::Curve;
use super::trial::{Balance, Trial};

/// Plain steps of a check.
pub(super) const CHECK: u32 = 4;

/// The part of all steps' time that checks may lose.
const CHECK_SHARE: f32 = 0.005;

/// Numbers of rows that are told apart: up to 4 each its own, then two an octave.
pub(super) const LEVELS: usize = 30;

pub(super) fn level(rows: usize) -> usize {
    if rows <= 4 {
        return rows;
    }
    let octave = rows.ilog2() as usize;
    (1 + 2 * octave + ((rows >> (octave - 1)) & 1)).min(LEVELS - 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    #[default]
    Off,
    Probe,
    On,
    /// Plain steps to see whether they would be faster by now.
    Check {
        left: u32,
    },
}

/// What is known for about so many rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    pub visited: bool,
    pub mode: Mode,
    /// Whether a trial has ended well since the last began.
    pub proven: bool,
    /// Steps with drafts since the last change to [`Mode::Probe`].
    pub steps: u32,
    pub checked: u32,
    /// Over some 20 and some 100 steps.
    pub fast: Balance,
    pub slow: Balance,
    pub trial: Trial,
    /// Draft tokens since then.
    pub drafts: usize,
    /// What was lost since things last went well.
    pub lost: f32,
    pub wait: u64,
    pub next_probe: u64,
    /// Throughput with drafts over that without, as the model expects it; and what it was when a probe failed.
    pub promise: f32,
    pub failed_promise: f32,
    /// Time of a step with drafts of the host over a plain one, by draft tokens.
    pub extra: Curve,
    /// The same with the draft model, by its iterations, and how many draft tokens there were.
    pub drafting: Curve,
    pub drafted: Curve,
    /// Whether the last step took far longer than the model said.
    pub stalled: bool,
    /// How much longer steps took than the model said, of the last few.
    pub surprise: f32,
    /// Most draft tokens whose time was measured.
    pub reached: usize,
    /// Of the draft model, in the last best lengths.
    pub iterations: usize,
}

impl Level {
    /// To be seen whether drafts pay.
    pub fn begin(&mut self) {
        (self.mode, self.proven) = (Mode::Probe, false);
        (self.steps, self.drafts, self.lost) = (0, 0, 0.0);
        (self.fast, self.slow, self.trial) = Default::default();
    }
}

/// Steps between two checks, so that they lose no more than their share.
pub(super) fn check_interval(ratio: f32) -> f32 {
    let lost = CHECK as f32 * (1.0 - 1.0 / ratio.max(1.0));
    (lost / CHECK_SHARE).clamp(16.0, 1024.0)
}
