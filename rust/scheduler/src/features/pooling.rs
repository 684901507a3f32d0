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

use std::ops::Range;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Terms, Who};
use crate::outbox::Outbox;
use crate::queue::requests::Request;
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::layout::StepLayout;
use crate::step::rows::StepRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, ExtensionKind, Submit};
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

/// Gives the vector back, before the end of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VectorExtra {
    /// f32 little-endian.
    #[serde(with = "serde_bytes")]
    pub states: Vec<u8>,
}

impl Extension for VectorExtra {
    const TAG: &'static str = "vector";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<PoolingExtension>()],
    gives: &[ExtensionKind::of::<VectorExtra>()],
    make: |_, layout| Box::new(Pools::new(layout)),
};

/// Why a request ends whose vector is none.
const NOT_FINITE: &str = "the model's hidden states are not finite";

/// A request that pools.
struct Pool {
    pooling: Pooling,
    /// The sum of the states so far; empty before the first.
    sum: Vec<f32>,
}

/// The requests that pool.
struct Pools {
    /// Numbers of a vector; 0 where steps have no room for any.
    hidden_size: usize,
    requests: PerRequest<Pool>,
    /// Rows of the step that pool, and the tokens whose states they want.
    rows: usize,
    tokens: usize,
}

impl Pools {
    /// For steps of `layout`.
    fn new(layout: &StepLayout) -> Self {
        Self { hidden_size: layout.hidden_size(), requests: PerRequest::default(), rows: 0, tokens: 0 }
    }

    /// The states of a row in a step's results.
    fn states<'a>(&self, results: &'a StepBuffers<'_>, own: Range<usize>) -> &'a [f32] {
        &results.pooled[own.start * self.hidden_size..own.end * self.hidden_size]
    }
}

impl RowFeature for Pools {
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32], terms: &mut Terms) -> Result<bool> {
        let Some(PoolingExtension { pooling }) = submit.extensions.get()? else { return Ok(false) };
        if submit.max_tokens != 1 || tokens.len() != submit.prompt_length as usize {
            return Err(Error::InvalidArgument("a request that pools has a prompt, and no tokens".into()));
        }
        if self.hidden_size == 0 {
            return Err(Error::InvalidArgument("steps of this engine have no room for vectors".into()));
        }
        terms.samples = false;
        self.requests.insert(id, Pool { pooling, sum: Vec::new() });
        Ok(true)
    }

    /// A mean needs the states of all tokens.
    fn reusable(&self, id: RequestId) -> u32 {
        match self.requests.get(id).map(|pool| pool.pooling) {
            Some(Pooling::Mean) => 0,
            _ => u32::MAX,
        }
    }

    fn begin_step(&mut self) {
        (self.rows, self.tokens) = (0, 0);
    }

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let Range { start, end } = row.tokens;
        let first = match self.requests.get(row.request)?.pooling {
            Pooling::Mean => start,
            Pooling::Last if row.completes => end - 1,
            Pooling::Last => return None,
        };
        out.pool_start[self.rows] = self.tokens as i32;
        for (place, token) in out.pool_token[self.tokens..].iter_mut().zip(first..end) {
            *place = token as i32;
        }
        self.rows += 1;
        self.tokens += end - first;
        out.pool_start[self.rows] = self.tokens as i32;
        Some(self.rows - 1..self.rows)
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_pooled_rows = self.rows as i64;
        header.num_pooled_tokens = self.tokens as i64;
    }

    fn fault(&self, results: &StepBuffers<'_>, own: Range<usize>) -> Option<&'static str> {
        let finite = self.states(results, own).iter().all(|number| number.is_finite());
        (!finite).then_some(NOT_FINITE)
    }

    /// Adds the sum of the row's states.
    fn take(&mut self, who: Who, results: &StepBuffers<'_>, own: Range<usize>, _outbox: &mut Outbox) {
        let states = self.states(results, own);
        let Some(pool) = self.requests.get_mut(who.id) else { return };
        if pool.sum.is_empty() {
            pool.sum.extend_from_slice(states);
        } else {
            pool.sum.iter_mut().zip(states).for_each(|(sum, state)| *sum += state);
        }
    }

    /// Sends the vector.
    fn conclude(
        &mut self,
        id: RequestId,
        request: &Request,
        outbox: &mut Outbox,
    ) -> Option<std::result::Result<(), &'static str>> {
        let pool = self.requests.get(id)?;
        let count = match pool.pooling {
            Pooling::Last => 1.0,
            Pooling::Mean => request.prompt_length as f32,
        };
        if pool.sum.iter().any(|number| !number.is_finite()) {
            return Some(Err(NOT_FINITE));
        }
        let states = pool.sum.iter().flat_map(|number| (number / count).to_le_bytes()).collect();
        outbox.extra(request.key, &VectorExtra { states });
        Some(Ok(()))
    }

    fn begin_again(&mut self, id: RequestId) {
        if let Some(pool) = self.requests.get_mut(id) {
            pool.sum.clear();
        }
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
