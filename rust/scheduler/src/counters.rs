//! What the planner counts.

use pyengine_messages::FinishReason;

/// Counts since the beginning; prefix counts are in tokens.
#[derive(Default)]
pub(super) struct Counters {
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Of those, tokens that were not sampled, as no other could come.
    pub certain_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    finished: [u64; FINISHED.len()],
}

/// How requests end, with the names of their counters.
const FINISHED: [(FinishReason, &str); 7] = [
    (FinishReason::Stop, "finished_stop"),
    (FinishReason::Length, "finished_length"),
    (FinishReason::Abort, "finished_abort"),
    (FinishReason::Timeout, "finished_timeout"),
    (FinishReason::Overloaded, "finished_overloaded"),
    (FinishReason::Error, "finished_error"),
    (FinishReason::Refused, "finished_refused"),
];

impl Counters {
    /// A request has ended.
    pub fn finished(&mut self, reason: FinishReason) {
        let at = FINISHED.iter().position(|(other, _)| *other == reason);
        at.into_iter().for_each(|at| self.finished[at] += 1);
    }
    /// Every count with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = [
            ("preemptions", self.preemptions),
            ("prompt_tokens", self.prompt_tokens),
            ("cached_tokens", self.cached_tokens),
            ("completion_tokens", self.completion_tokens),
            ("certain_tokens", self.certain_tokens),
            ("prefix_queries", self.prefix_queries),
            ("prefix_hits", self.prefix_hits),
        ];
        let finished = FINISHED.iter().zip(self.finished).map(|((_, name), count)| (*name, count));
        counts.into_iter().chain(finished)
    }
}
