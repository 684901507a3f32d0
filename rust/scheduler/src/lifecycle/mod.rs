//! The way of every request: submitted, prepared, queued, running, perhaps preempted, ended.
//!
//! ```text
//!   mailbox ──inbox──► submit ──► (prepared by a feature) ──► Queue ──admission──► a sequence of the steps ──► ends
//!                         └─► refused                           ▲                          │
//!                                                               └─────────preempted────────┘
//! ```
//!
//! This part owns what is known of requests whether they run or not: the [`Requests`], the [`Queue`], what their
//! [`Features`] keep, and what is told of them: messages, counts, times. The running sequences are the
//! [`steps`](crate::step)', which each method gets that concerns them.

mod ends;
mod inbox;
mod preparing;
mod submit;

use super::config::PlannerConfig;
use super::counters::Counters;
use super::distributions::Distributions;
use super::features::Features;
use super::features::costs::Costs;
use super::outbox::Outbox;
use super::queue::Queue;
use super::queue::requests::Requests;
use super::recording::Recording;
use super::step::layout::StepLayout;
use super::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{Message, Notice, RequestKey};
use pyengine_telemetry::{Stage, Timeline};

/// All requests, and what is told of them. O(requests) of memory.
pub(super) struct Lifecycle {
    limits: Limits,
    pub requests: Requests,
    pub queue: Queue,
    pub features: Features,
    pub outbox: Outbox,
    pub counters: Counters,
    pub distributions: Distributions,
    pub recording: Recording,
    /// The scheduler's spans.
    pub timeline: Timeline,
    /// The clock of the call that is under way, or was last.
    pub now_ns: u64,
    /// The message that is being read.
    message: Vec<u8>,
}

/// The bounds that a request is judged by.
#[derive(Clone, Copy)]
struct Limits {
    /// Longest prompt and answer together, in tokens.
    max_context: u32,
    /// Most requests that wait.
    max_waiting: usize,
    /// Tokens whose KV one sequence can have at most: all blocks, or all pages of a step.
    capacity: u32,
    /// Sequences that run at once.
    concurrency: usize,
}

impl Lifecycle {
    /// No requests.
    pub fn new(
        config: &PlannerConfig,
        layout: &StepLayout,
        kv: &KvAllocator,
        outbox: Outbox,
        timeline: Timeline,
    ) -> Self {
        let mut features = Features::new(config, layout);
        features.get::<Costs>().watch(timeline.clone());
        Self {
            limits: Limits {
                max_context: config.max_context as u32,
                max_waiting: config.max_waiting,
                capacity: kv.capacity().min(layout.max_pages() * kv.block_size()) as u32,
                concurrency: config.concurrency(layout),
            },
            requests: Requests::default(),
            queue: Queue::default(),
            features,
            outbox,
            counters: Counters::default(),
            distributions: Distributions::default(),
            recording: Recording::new(kv.block_size()),
            timeline,
            now_ns: 0,
            message: Vec::new(),
        }
    }

    /// A request has got its token number `generated`.
    pub fn stamp_token(&mut self, id: RequestId, generated: u32) {
        let last_ns = self.requests.stamp_token(id, self.now_ns);
        self.distributions.token(self.requests.get(id), generated, last_ns, self.now_ns);
    }

    /// Sends a request's client a text. One that cannot be encoded is not sent.
    fn tell(&mut self, key: RequestKey, text: String) {
        let _ = self.outbox.beside(&Message::Notice(Notice { key, text }));
    }

    /// Sends the detokenizer what there is to tell it. If its mailbox is closed, that is the error; the state is whole all
    /// the same.
    pub fn send(&mut self) -> Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let sent = self.outbox.flush();
        self.timeline.end_span(Stage::Message);
        sent
    }

    /// Ends a span and sends what is to be sent.
    pub fn flush(&mut self, span: Stage) -> Result<()> {
        self.timeline.end_span(span);
        self.send()
    }
}
