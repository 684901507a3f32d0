//! How long requests wait and how long they are: the planner's histograms.
//!
//! ```text
//!  arrival ──queue──► first admitted ──► first token ──gap──► token ──gap──► ... ──► answered
//!     ├──────────── time to first token ─────┤
//!     ├──────────────────────────── duration ──────────────────────────────────────────┤
//! ```
//!
//! A token's time is that of the commit that took it. O(log buckets) a token, no allocation.

use crate::queue::requests::Request;
use pyengine_messages::FinishReason;
use pyengine_telemetry::{Histogram, LATENCY_BOUNDS_NS, LENGTH_BOUNDS, TOKEN_BOUNDS_NS};

/// One histogram for each distribution; times in nanoseconds.
pub(super) struct Distributions {
    queue_time: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    duration: Histogram,
    prompt_length: Histogram,
    completion_length: Histogram,
}

impl Default for Distributions {
    fn default() -> Self {
        let [latency, token, length] =
            [&LATENCY_BOUNDS_NS[..], &TOKEN_BOUNDS_NS, &LENGTH_BOUNDS].map(Histogram::new);
        Self {
            queue_time: latency.clone(),
            time_to_first_token: latency.clone(),
            inter_token_latency: token,
            duration: latency,
            prompt_length: length.clone(),
            completion_length: length,
        }
    }
}

impl Distributions {
    /// A request got a place in the sequence table for the first time, so long after it arrived.
    pub fn admitted(&mut self, waited_ns: u64) {
        self.queue_time.observe(waited_ns);
    }

    /// A request got a token at `now_ns`, its `number`th after the prompt; `last_ns` is the time of the one before.
    pub fn token(&mut self, request: &Request, number: u32, last_ns: u64, now_ns: u64) {
        if number == 1 {
            self.time_to_first_token.observe(now_ns.saturating_sub(request.ticket.arrival_ns));
        } else if last_ns > 0 {
            self.inter_token_latency.observe(now_ns.saturating_sub(last_ns));
        }
    }

    /// A request ended with `generated` tokens. Only answers count: what was cut off says nothing of how long
    /// answers take.
    pub fn ended(&mut self, request: &Request, generated: u32, reason: FinishReason, now_ns: u64) {
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            self.duration.observe(now_ns.saturating_sub(request.ticket.arrival_ns));
            self.prompt_length.observe(request.prompt_length.into());
            self.completion_length.observe(generated.into());
        }
    }

    /// All of them, by name.
    pub fn all(&self) -> [(&'static str, &Histogram); 6] {
        [
            ("queue_time_ns", &self.queue_time),
            ("time_to_first_token_ns", &self.time_to_first_token),
            ("inter_token_latency_ns", &self.inter_token_latency),
            ("duration_ns", &self.duration),
            ("prompt_length", &self.prompt_length),
            ("completion_length", &self.completion_length),
        ]
    }
}
