//! Log-probabilities on their way from the device to the detokenizer.
//!
//! A step gives them for each of its logits, those behind wrong drafts too; what is taken of a row goes out with its
//! tokens, as [`SequenceTokens`](crate::messages::SequenceTokens) has it. O(log-probabilities).

use crate::error::{Error, Result};
use crate::scheduler::planner::StepRecord;

/// The log-probabilities of a step, by its logits; those of rows that want none may be anything.
#[derive(Debug, Clone, Copy)]
pub struct LogProbs<'a> {
    /// The most likely tokens of each, as many for all; -1 where there are no more.
    pub tokens: &'a [i32],
    /// Their log-probabilities.
    pub logprobs: &'a [f32],
    /// Those of the tokens that were chosen.
    pub chosen: &'a [f32],
}

impl LogProbs<'_> {
    /// Appends those of `rows` logits from `first` on, `count` most likely tokens of each.
    pub(in crate::scheduler) fn write(&self, first: usize, rows: usize, count: usize, out: &mut Vec<u8>) {
        let width = self.tokens.len() / self.chosen.len().max(1);
        for row in first..first + rows {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.chosen[row].to_le_bytes());
            for at in row * width..row * width + count {
                out.extend_from_slice(&self.tokens[at].to_le_bytes());
                out.extend_from_slice(&self.logprobs[at].to_le_bytes());
            }
        }
    }
}

/// Checks that a step that wants log-probabilities has got them.
pub(in crate::scheduler) fn check(record: &StepRecord, logprobs: Option<LogProbs<'_>>) -> Result<()> {
    let Some(most) = record.logprobs.checked_sub(1) else { return Ok(()) };
    let invalid = |message: &str| Err(Error::InvalidArgument(message.into()));
    let Some(LogProbs { tokens, logprobs, chosen }) = logprobs else {
        return invalid("the step wants log-probabilities, and got none");
    };
    let logits = record.num_logits;
    if chosen.len() != logits || tokens.len() != logprobs.len() || !tokens.len().is_multiple_of(logits) {
        return invalid("log-probabilities are not as many as the step's logits");
    }
    if tokens.len() / logits < most {
        return invalid("the step wants the log-probabilities of more tokens");
    }
    Ok(())
}
