//! What only some requests have: grammars, penalties, log-probabilities, drafts.

pub(super) mod closing;
pub(super) mod drafting;
mod drafts;
mod grammars;
pub(super) mod logprobs;
pub(super) mod penalties;
mod penalty_budget;
pub(super) mod thread_pool;
