//! Log-probabilities of prompts: of each token of a prompt after those before it.
//!
//! ```text
//!                 chunk of a prompt    its last chunk
//!   tokens          a b c d              e f g
//!   logits after    x x x x              x x -
//!   of the token    b c d e              f g
//! ```
//!
//! The device makes these logits a few rows at a time and keeps of each row the log-probability of the token that
//! follows and the most likely tokens; a commit sends them on, so that neither it nor the scheduler ever has those of a
//! whole prompt. Logits of tokens that the prefix cache has are not made: such a request takes from the cache only what
//! lies before the first token that is still wanted. What was sent is not made again after a preemption, nor after a
//! restart, whose submission says how much the frontend has. O(tokens) a row that wants them.

use super::logprobs::LogProbs;
use super::per_request::PerRequest;
use super::pooling::PoolingExtension;
use super::row_feature::RowFeature;
use crate::outbox::Outbox;
use crate::step::StepRecord;
use crate::step::buffers::{MAX_LOGPROBS, StepBuffers, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, Message, PromptLogProbs, RequestKey, Submit};
use serde::{Deserialize, Serialize};

/// Asks for the log-probability of each token of the prompt but the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptLogProbsExtension {
    /// Number of most likely tokens to report beside it.
    pub count: u8,
    /// How many of the first log-probabilities are left out: not wanted, or known from before a restart.
    pub first: u32,
}

impl Extension for PromptLogProbsExtension {
    const TAG: &'static str = "prompt_logprobs";
}

/// Bytes of one message of log-probabilities: small beside every ring.
const MESSAGE_BYTES: usize = 1 << 14;

/// What a request wants.
struct Scored {
    /// Most likely tokens beside each.
    count: u8,
    /// The first position whose logits are still wanted, and the one behind the last.
    next: u32,
    end: u32,
}

/// The requests that want their prompts' log-probabilities.
#[derive(Default)]
pub(crate) struct PromptScores {
    requests: PerRequest<Scored>,
    /// Logits of the step, and the most likely tokens that one of its rows wants.
    logits: usize,
    most: u8,
}

impl PromptScores {
    /// Tokens of a request that may come from the prefix cache: those before the first whose logits are wanted.
    pub fn reusable(&self, id: RequestId) -> u32 {
        match self.requests.get(id) {
            Some(scored) if scored.next < scored.end => scored.next,
            _ => u32::MAX,
        }
    }

    /// Writes which logits a row of the step wants, whose tokens in the step are from `first` on, and in its sequence
    /// `positions` of `tokens`; returns how many.
    pub fn write_row(
        &mut self,
        id: RequestId,
        first: usize,
        positions: std::ops::Range<u32>,
        tokens: &[u32],
        out: &mut StepBuffers<'_>,
    ) -> u32 {
        if self.requests.is_empty() {
            return 0;
        }
        let Some(scored) = self.requests.get(id) else { return 0 };
        let wanted = positions.start.max(scored.next)..positions.end.min(scored.end);
        for position in wanted.clone() {
            out.prompt_token[self.logits] = (first + (position - positions.start) as usize) as i32;
            out.prompt_target[self.logits] = tokens[position as usize + 1] as i32;
            self.logits += 1;
        }
        if !wanted.is_empty() {
            self.most = self.most.max(scored.count);
        }
        wanted.len() as u32
    }

    /// Sends the log-probabilities of a row, `rows` of the step's from `first` on.
    pub fn take(
        &mut self,
        (id, key): (RequestId, RequestKey),
        logprobs: &LogProbs<'_>,
        (first, rows): (usize, usize),
        outbox: &mut Outbox,
    ) {
        let Some(scored) = self.requests.get_mut(id) else { return };
        scored.next += rows as u32;
        let count = usize::from(scored.count);
        let each = (MESSAGE_BYTES / (8 * (count + 1))).max(1);
        for at in (0..rows).step_by(each) {
            let mut records = Vec::new();
            logprobs.write(first + at, each.min(rows - at), count, &mut records);
            // Bytes can always be encoded.
            let _ = outbox.beside(&Message::PromptLogProbs(PromptLogProbs { key, records }));
        }
    }
}

impl RowFeature for PromptScores {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32]) -> Result<()> {
        let Some(PromptLogProbsExtension { count, first }) = submit.extensions.get()? else { return Ok(()) };
        let pools = submit.extensions.has::<PoolingExtension>();
        if usize::from(count) > MAX_LOGPROBS || first >= submit.prompt_length || pools {
            return Err(Error::InvalidArgument("a prompt's log-probabilities are out of range".into()));
        }
        let end = submit.prompt_length - 1;
        self.requests.insert(id, Scored { count, next: first, end });
        Ok(())
    }

    fn begin_step(&mut self) {
        (self.logits, self.most) = (0, 0);
    }

    fn write(&mut self, _row: &SampledRow, _out: &mut StepBuffers<'_>) {}

    fn end_step(&mut self, header: &mut [i64], _record: &mut StepRecord) {
        header[header::NUM_PROMPT_LOGITS] = self.logits as i64;
        header[header::MAX_PROMPT_LOGPROBS] = i64::from(self.most);
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
