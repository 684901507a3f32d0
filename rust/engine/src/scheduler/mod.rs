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

mod admission;
pub(crate) mod buffers;
mod closing;
mod commit;
mod crew;
mod distributions;
mod draft_passes;
mod drafting;
mod drafts;
mod fill;
mod finish;
mod grammars;
mod intake;
mod logprobs;
mod outbox;
mod padding;
mod penalties;
mod penalty_budget;
mod plan;
mod planner;
mod policy;
mod requests;
mod sequence_table;
mod sharing;
#[cfg(test)]
mod simulation;
mod submit;

pub use buffers::{Field, StepBuffers, StepLayout};
pub use draft_passes::DraftPasses;
pub use logprobs::LogProbs;
pub use outbox::Outlet;
pub use planner::{Planner, PlannerConfig};
