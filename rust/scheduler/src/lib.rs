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
mod features;
mod lifecycle;
mod outbox;
mod planner;
mod queue;
mod recording;
mod rotation;
#[cfg(test)]
mod simulation;
pub mod step;

pub use config::PlannerConfig;
pub use features::adapters::Adapters;
pub use features::grammars::Grammars;
pub use features::processors::{ProcessedRow, Processors};
pub use features::{extensions, extras};
pub use outbox::DetokenizerSink;
pub use planner::Planner;
pub use step::buffers::StepBuffers;
pub use step::fields::Field;
pub use step::layout::StepLayout;
pub use step::rows::DeviceTimes;
