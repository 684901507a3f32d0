//! Pooling: requests whose answer is a vector, made of their prompts' last hidden states. They have no logits, and
//! nothing is decoded.
//!
//! ```text
//!             chunk of a prompt   its last chunk
//!   tokens      p p p p             p p p
//!   last                                x      the state of the last token is the vector
//!   mean        x x x x             x x x      a step gives the sum of each row, and sums are added here
//! ```
//!
//! A request that pools is a sequence that ends with one token more than its prompt has, which never comes: its last
//! row brings the vector in its place. A mean needs every token's state, so such a request takes nothing from the prefix
//! cache; what it computes is cached for others. O(tokens) a row that pools, and O(width) for its sum.

use super::per_request::PerRequest;
use super::row_feature::RowFeature;
use crate::step::StepRecord;
use crate::step::buffers::{StepBuffers, StepLayout, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, Submit};
use serde::{Deserialize, Serialize};

/// Which of a prompt's last hidden states make its vector. Serialized by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The state of its last token.
    Last,
    /// The mean of all states.
    Mean,
}

/// Asks for a vector in place of an answer; `max_tokens` is 1 then, and no token is generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolingExtension {
    /// How the vector is made.
    pub pooling: Pooling,
}

impl Extension for PoolingExtension {
    const TAG: &'static str = "pooling";
}

/// A request that pools.
struct Pool {
    pooling: Pooling,
    /// The sum of the states so far; empty before the first.
    sum: Vec<f32>,
}

/// The requests that pool.
pub(crate) struct Pools {
    /// Numbers of a vector; 0 where steps have no room for any.
    hidden_size: usize,
    requests: PerRequest<Pool>,
    /// Rows of the step that pool, and the tokens whose states they want.
    rows: usize,
    tokens: usize,
}

impl Pools {
    /// For steps of `layout`.
    pub fn new(layout: &StepLayout) -> Self {
        Self { hidden_size: layout.hidden_size(), requests: PerRequest::default(), rows: 0, tokens: 0 }
    }

    /// Writes which states a row of the step wants, whose tokens are `first..end`, the sequence's last among them if it
    /// `completes` it. False if it wants none.
    pub fn write_row(
        &mut self,
        id: RequestId,
        (first, end): (usize, usize),
        completes: bool,
        out: &mut StepBuffers<'_>,
    ) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        let first = match self.requests.get(id).map(|pool| pool.pooling) {
            Some(Pooling::Mean) => first,
            Some(Pooling::Last) if completes => end - 1,
            _ => return false,
        };
        out.pool_start[self.rows] = self.tokens as i32;
        for (place, token) in out.pool_token[self.tokens..].iter_mut().zip(first..end) {
            *place = token as i32;
        }
        self.rows += 1;
        self.tokens += end - first;
        out.pool_start[self.rows] = self.tokens as i32;
        true
    }

    /// Whether the request's answer is a vector.
    pub fn pools(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some()
    }

    /// How many of a request's first tokens may come from the prefix cache: a mean needs the states of all.
    pub fn reusable(&self, id: RequestId) -> u32 {
        match self.requests.get(id).map(|pool| pool.pooling) {
            Some(Pooling::Mean) => 0,
            _ => u32::MAX,
        }
    }

    /// Adds the sum of a row's states.
    pub fn add(&mut self, id: RequestId, states: &[f32]) {
        let Some(pool) = self.requests.get_mut(id) else { return };
        if pool.sum.is_empty() {
            pool.sum.extend_from_slice(states);
        } else {
            pool.sum.iter_mut().zip(states).for_each(|(sum, state)| *sum += state);
        }
    }

    /// The vector of a request whose prompt of so many tokens is computed, f32 little-endian; no bytes if it is not
    /// finite, and `None` of a request that does not pool.
    pub fn vector(&self, id: RequestId, prompt_length: u32) -> Option<Option<Vec<u8>>> {
        let pool = self.requests.get(id)?;
        let count = match pool.pooling {
            Pooling::Last => 1.0,
            Pooling::Mean => prompt_length as f32,
        };
        let finite = pool.sum.iter().all(|number| number.is_finite());
        Some(finite.then(|| pool.sum.iter().flat_map(|number| (number / count).to_le_bytes()).collect()))
    }

    /// A request was preempted: its prompt is computed again.
    pub fn begin_again(&mut self, id: RequestId) {
        if let Some(pool) = self.requests.get_mut(id) {
            pool.sum.clear();
        }
    }
}

impl RowFeature for Pools {
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()> {
        let Some(PoolingExtension { pooling }) = submit.extensions.get()? else { return Ok(()) };
        if submit.max_tokens != 1 || tokens.len() != submit.prompt_length as usize {
            return Err(Error::InvalidArgument("a request that pools has a prompt, and no tokens".into()));
        }
        if self.hidden_size == 0 {
            return Err(Error::InvalidArgument("steps of this engine have no room for vectors".into()));
        }
        self.requests.insert(id, Pool { pooling, sum: Vec::new() });
        Ok(())
    }

    fn begin_step(&mut self) {
        (self.rows, self.tokens) = (0, 0);
    }

    fn write(&mut self, _row: &SampledRow, _out: &mut StepBuffers<'_>) {}

    fn end_step(&mut self, header: &mut [i64], _record: &mut StepRecord) {
        header[header::NUM_POOLED_ROWS] = self.rows as i64;
        header[header::NUM_POOLED_TOKENS] = self.tokens as i64;
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
