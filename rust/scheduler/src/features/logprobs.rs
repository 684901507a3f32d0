//! Log-probabilities on their way from the device to the detokenizer.
//!
//! A step gives them for each of its logits, those behind wrong drafts too; what is taken of a row goes out with its
//! tokens, as [`SequenceTokens`](pyengine_messages::SequenceTokens) has it. O(log-probabilities).

use super::per_request::PerRequest;
use super::row_feature::RowFeature;
use crate::step::StepRecord;
use crate::step::buffers::{MAX_LOGPROBS, StepBuffers, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, Submit};
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

/// The log-probabilities of a step; those of rows that want none may be anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogProbs<'a> {
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

    /// Appends those of `rows` logits from `first` on, `count` most likely tokens of each.
    pub(super) fn write(&self, first: usize, rows: usize, count: usize, out: &mut Vec<u8>) {
        for row in first..first + rows {
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
pub(crate) struct WantedLogProbs {
    requests: PerRequest<u8>,
    /// Rows of the step that want some, and the most that one wants.
    rows: usize,
    most: Option<u8>,
}

impl WantedLogProbs {
    /// Whether the request wants log-probabilities.
    pub fn wanted(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some()
    }

    /// Appends the log-probabilities of `rows` logits from `first` on to `out`, if the request wants them.
    pub fn append(
        &self,
        id: RequestId,
        logprobs: &LogProbs<'_>,
        first: usize,
        rows: usize,
        out: &mut Vec<u8>,
    ) {
        if let Some(count) = self.requests.get(id) {
            logprobs.write(first, rows, usize::from(*count), out);
        }
    }
}

impl RowFeature for WantedLogProbs {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32]) -> Result<()> {
        let Some(LogProbsExtension { count }) = submit.extensions.get()? else { return Ok(()) };
        if usize::from(count) > MAX_LOGPROBS {
            return Err(Error::InvalidArgument("a request's log-probabilities are out of range".into()));
        }
        self.requests.insert(id, count);
        Ok(())
    }

    fn begin_step(&mut self) {
        (self.rows, self.most) = (0, None);
    }

    fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>) {
        let wanted = self.requests.get(row.request).copied();
        self.rows += usize::from(wanted.is_some());
        self.most = self.most.max(wanted);
        let logits = row.first_logit..=row.first_logit + row.drafts as usize;
        out.logprobs[logits].fill(wanted.map_or(-1, i32::from));
    }

    fn end_step(&mut self, header: &mut [i64], record: &mut StepRecord) {
        header[header::NUM_LOGPROBS_ROWS] = self.rows as i64;
        header[header::MAX_LOGPROBS] = self.most.map_or(0, i64::from);
        record.logprobs = self.most;
    }

    fn wants_samples(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some()
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
