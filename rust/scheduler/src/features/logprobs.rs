//! Log-probabilities on their way from the device to the detokenizer.
//!
//! A step gives them for each of its logits, those behind wrong drafts too; what is taken of a row goes out with its
//! tokens, as [`SequenceTokens`](pyengine_messages::SequenceTokens) has it. O(log-probabilities).

use std::ops::Range;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Terms};
use crate::outbox::Outbox;
use crate::step::buffers::{MAX_LOGPROBS, StepBuffers, StepHeader};
use crate::step::rows::StepRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, ExtensionKind, Submit};
use serde::{Deserialize, Serialize};

/// Asks for the log-probability of each token of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogProbsExtension {
    /// Number of most likely tokens to report beside it.
    pub count: u8,
}

impl Extension for LogProbsExtension {
    const TAG: &'static str = "logprobs";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<LogProbsExtension>()],
    gives: &[],
    make: |_, _| Box::new(WantedLogProbs::default()),
};

/// The log-probabilities of a step; those of rows that want none may be anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogProbs<'a> {
    /// The most likely tokens of each, [`MAX_LOGPROBS`].
    pub tokens: &'a [i32],
    /// Their log-probabilities.
    pub logprobs: &'a [f32],
    /// Log-probabilities of the chosen tokens.
    pub chosen: &'a [f32],
}

impl<'a> LogProbs<'a> {
    /// Those of the step's logits.
    pub fn of_answers(results: &'a StepBuffers<'_>) -> Self {
        Self { tokens: results.top_tokens, logprobs: results.top_logprobs, chosen: results.sampled_logprobs }
    }

    /// Those of its logits of prompts.
    pub fn of_prompts(results: &'a StepBuffers<'_>) -> Self {
        Self {
            tokens: results.prompt_top_tokens,
            logprobs: results.prompt_top_logprobs,
            chosen: results.prompt_logprobs,
        }
    }

    /// Appends those of some logits, with `count` most likely tokens of each.
    pub fn write(&self, logits: Range<usize>, count: usize, out: &mut Vec<u8>) {
        for row in logits {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.chosen[row].to_le_bytes());
            for at in row * MAX_LOGPROBS..row * MAX_LOGPROBS + count {
                out.extend_from_slice(&self.tokens[at].to_le_bytes());
                out.extend_from_slice(&self.logprobs[at].to_le_bytes());
            }
        }
    }
}

/// Of how many most likely tokens each request wants the log-probabilities, beside each token's own.
#[derive(Default)]
struct WantedLogProbs {
    requests: PerRequest<u8>,
    /// Rows of the step that want some, and the most that one wants.
    rows: usize,
    most: u8,
}

impl RowFeature for WantedLogProbs {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], terms: &mut Terms) -> Result<bool> {
        let Some(LogProbsExtension { count }) = submit.extensions.get()? else { return Ok(false) };
        if usize::from(count) > MAX_LOGPROBS {
            return Err(Error::InvalidArgument("a request's log-probabilities are out of range".into()));
        }
        terms.places = true;
        self.requests.insert(id, count);
        Ok(true)
    }

    fn begin_step(&mut self) {
        (self.rows, self.most) = (0, 0);
    }

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let (wanted, sampling) = (*self.requests.get(row.request)?, row.sampling?);
        self.rows += 1;
        self.most = self.most.max(wanted);
        out.logprobs[sampling.logits()].fill(wanted.into());
        Some(sampling.logits())
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_logprobs_rows = self.rows as i64;
        header.max_logprobs = self.most.into();
    }

    fn append(
        &self,
        id: RequestId,
        results: &StepBuffers<'_>,
        own: Range<usize>,
        taken: usize,
        outbox: &mut Outbox,
    ) {
        if let Some(count) = self.requests.get(id) {
            let logits = own.start..own.start + taken;
            LogProbs::of_answers(results).write(logits, usize::from(*count), outbox.logprobs());
        }
    }

    fn wants_samples(&self, _id: RequestId) -> bool {
        true
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
