//! The scheduler's Rust half: *computed tokens chase total tokens*.
//!
//! ```text
//!            Submit, Abort, StopMatched                        TokensOut, OpenStream
//!   mailbox ──────────► drain            plan ──► StepBuffers        ▲
//!                         │               ▲  │                       │
//!                         ▼               │  ▼                       │
//!                   WaitingQueue ─────► SequenceTable ◄──────────  commit ◄── sampled tokens
//!                     (policy)      admit │  ▲ preempt
//!                                         ▼  │
//!                                     KvAllocator
//! ```
//!
//! A prompt, a chunk of one, what a prefix hit left of one, a decode, and the recomputation after a preemption
//! are the same thing here: a row that computes tokens `planned..planned + n` of a sequence, and samples if that
//! reaches its end. Everything is deterministic given the clock and the messages.

mod config;
mod counters;
mod distributions;
mod draft_passes;
mod features;
mod outbox;
mod planner;
mod queue;
mod rotation;
#[cfg(test)]
mod simulation;
pub mod step;

pub use config::PlannerConfig;
pub use draft_passes::{DraftPasses, SharedPages};
pub use features::EXTENSIONS;
pub use features::processors::ProcessedRow;
pub use outbox::DetokenizerSink;
pub use planner::Planner;
pub use step::DeviceTimes;
pub use step::buffers::{Field, StepBuffers, StepLayout};
