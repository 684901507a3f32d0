//! A recording: what the engine was asked for and how long its steps took, without a word of it.
//!
//! ```text
//!   prompt   │ block 0 │ block 1 │ block 2 │ rest │     a number for each full block: of it and of all before it, so that
//!               h(salt)    h(h0)     h(h1)              equal numbers are equal beginnings; nothing tells the tokens
//! ```
//!
//! It begins when it is first taken, and ends when it is full, since then it is not taken any more. O(tokens of the prompt)
//! at a request's end, O(rows) a step; while there is none, nothing.

use std::hash::{BuildHasher, RandomState};

use serde::Serialize;

use crate::queue::requests::Request;
use crate::step::buffers::StepBuffers;
use crate::step::rows::DeviceTimes;

/// The most blocks and steps that are kept until they are taken: one message holds them.
const MAX_BLOCKS: usize = 1 << 17;
const MAX_STEPS: usize = 1 << 14;

/// What came from one moment to another; `pyengine.messages.Recorded` describes it.
#[derive(Default, Serialize)]
pub struct Recorded {
    since_ns: u64,
    until_ns: u64,
    requests: Vec<RecordedRequest>,
    steps: Vec<[u64; 4]>,
}

#[derive(Serialize)]
struct RecordedRequest {
    arrival_ns: u64,
    prompt_tokens: u32,
    answer_tokens: u32,
    priority: i32,
    #[serde(with = "serde_bytes")]
    sampling: Vec<u8>,
    prefix: Vec<u64>,
    constrained: bool,
}

/// The recording, if there is one.
pub(super) struct Recording {
    block_size: usize,
    /// What came since it was taken.
    fresh: Option<Recorded>,
    blocks: usize,
    /// Of each engine another, so that its numbers tell nothing.
    hasher: RandomState,
}

impl Recording {
    /// No recording yet; blocks have `block_size` tokens.
    pub fn new(block_size: usize) -> Self {
        Self { block_size, fresh: None, blocks: 0, hasher: RandomState::new() }
    }

    /// A request ends; `tokens` are its prompt and its answer, which a grammar may have `constrained`.
    pub fn ended(&mut self, request: &Request, tokens: &[u32], constrained: bool) {
        let Some(fresh) = &mut self.fresh else { return };
        let (prompt, answer) = tokens.split_at(request.prompt_length as usize);
        self.blocks += 1 + prompt.len() / self.block_size;
        if self.blocks > MAX_BLOCKS {
            self.fresh = None;
            return;
        }
        let mut number = request.salt;
        let prefix = prompt.chunks_exact(self.block_size).map(|block| {
            number = self.hasher.hash_one((number, block));
            number
        });
        fresh.requests.push(RecordedRequest {
            arrival_ns: request.ticket.arrival_ns,
            prompt_tokens: request.prompt_length,
            answer_tokens: answer.len() as u32,
            priority: request.ticket.class,
            sampling: request.sampling.as_bytes().to_vec(),
            prefix: prefix.collect(),
            constrained,
        });
    }

    /// A step is over, whose buffers these are.
    pub fn step(&mut self, step: &StepBuffers<'_>, times: Option<DeviceTimes>) {
        let (Some(fresh), Some(times)) = (&mut self.fresh, times) else { return };
        let rows = step.header.num_rows as usize;
        let lengths = step.query_start[..=rows].windows(2).map(|ends| ends[1] - ends[0]);
        let seen =
            lengths.zip(step.kv_length.iter()).map(|(tokens, context)| tokens as u64 * *context as u64);
        fresh.steps.push([rows as u64, step.header.num_tokens as u64, seen.sum(), times.busy_ns()]);
        if fresh.steps.len() > MAX_STEPS {
            self.fresh = None;
        }
    }

    /// Takes what came since the last call; the first call begins the recording.
    pub fn take(&mut self, now_ns: u64) -> Recorded {
        self.blocks = 0;
        let fresh = self.fresh.replace(Recorded { since_ns: now_ns, ..Recorded::default() });
        Recorded { until_ns: now_ns, ..fresh.unwrap_or(Recorded { since_ns: now_ns, ..Recorded::default() }) }
    }
}
