//! Selects the request that runs next: all policy of the scheduler is in this folder, and nothing else.
//!
//! - **Classes with aging.** A lower priority number is a better class. A class's turn is judged by its oldest
//!   request's `arrival + class * AGING`: a better class passes a request over only as long as its own requests arrived
//!   less than `AGING` per class between them later. No request waits for ever.
//! - **Fair share.** Within a class tenants take turns by virtual time, the tokens they were served: the tenant
//!   with the least is next. A tenant that comes to wait starts at the time of the tenant served last, so idling
//!   saves up no credit; tokens that it was served beyond that time are remembered. The class's oldest request goes before
//!   any that arrived `AGING` after it, whichever tenant's turn it is.
//! - **Arrival.** Within a tenant the earliest goes first.
//! - **Preempted requests** come before all others of their class, in the order they arrived.
//! - **Admission looks ahead.** Beside what runs, a request is admitted only if, after its blocks, enough are left
//!   for every running sequence (it too) to grow by [`GROWTH_TOKENS`]. The head of the queue is not passed over when it does
//!   not fit, so large prompts get in.
//! - **Preemption.** When a sequence needs a block and there is none, the worst class's latest admitted goes
//!   back to the queue; the best class's earliest is never the victim of another, so work always gets done.
//! - **Budget.** Decodes are served first, one token each; prefills share the rest in running order, none more
//!   than `prefill_chunk`. Beside decodes prefills have `prefill_beside_decodes` together, or [`PREFILL_PER_REQUEST`] for
//!   each request that runs or could: where each token makes a step longer, as on a CPU, that bounds the gaps of the answers
//!   under way. A share that grows with the requests, whether they decode or wait, keeps a few that decode from holding up
//!   the prompts of many.
//!
//! Choosing the head costs O(classes + log waiting), joining and leaving O(log waiting): a step never scans
//! the queue.

mod tenants;
mod waiting;

use crate::step::sequence_table::Progress;

pub use tenants::Tenants;
pub use waiting::{Ticket, WaitingQueue};

/// Waiting this long is worth one priority class.
pub const AGING_NS: u64 = 10_000_000_000;

/// Admission keeps blocks for this many further tokens of every running sequence.
pub const GROWTH_TOKENS: u32 = 64;

/// Prompt tokens that a step may have beside decodes for each request that runs or could.
pub const PREFILL_PER_REQUEST: usize = 3;

/// Tokens of one sequence's share of a step: what remains, within the budget and the cap (0 is none).
pub fn share(remaining: u32, budget: usize, prefill_chunk: usize) -> usize {
    let cap = if prefill_chunk == 0 { usize::MAX } else { prefill_chunk };
    (remaining as usize).min(budget).min(cap)
}

/// Most prompt tokens of a step that also decodes, where this many requests run, or could; `least` of 0 is no cap.
pub fn prefill_beside_decodes(requests: usize, least: usize) -> usize {
    if least == 0 { usize::MAX } else { least.max(PREFILL_PER_REQUEST * requests) }
}

/// Tokens that a sequence will have KV of after its next `horizon` ones (its last token needs none).
pub fn expected_tokens(progress: &Progress, horizon: u32) -> usize {
    (progress.total() + horizon).min(progress.limit - 1) as usize
}

/// Whether a request that takes `needed` of the `available` pages may join sequences that will want `growth`
/// more. One that would run alone needs only its own.
pub fn admits(needed: usize, available: usize, growth: usize, alone: bool) -> bool {
    needed + if alone { 0 } else { growth } <= available
}

/// Order in which running sequences get blocks and tokens; the last is the first victim.
pub fn running_order(class: i32, admission: u64) -> (i32, u64) {
    (class, admission)
}

#[cfg(test)]
mod tests;
