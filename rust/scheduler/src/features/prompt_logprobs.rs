//! Log-probabilities of prompts: of each token of a prompt after those before it, and of tokens that may follow it.
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
//! lies before the first token that is still wanted. Tokens that may follow are scored behind the prompt's last token, in one
//! step that has room for all of them. What was sent is not made again after a preemption, nor after a
//! restart, whose submission says how much the frontend has. O(tokens) a row that wants them.

use std::ops::Range;
use std::sync::Arc;

use super::logprobs::LogProbs;
use super::per_request::PerRequest;
use super::pooling::PoolingExtension;
use super::row_feature::{NOT_FINITE, Registration, RowFeature, Terms, Who};
use crate::outbox::Outbox;
use crate::step::buffers::{MAX_LOGPROBS, StepBuffers, StepHeader};
use crate::step::layout::MAX_FOLLOWING;
use crate::step::rows::{Runner, StepRow};
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, ExtensionKind, Submit, token_ids};
use serde::{Deserialize, Serialize};

/// Asks for the log-probability of each token of the prompt but the first, and of tokens that may follow it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptLogProbsExtension {
    /// Number of most likely tokens to report beside it.
    pub count: u8,
    /// How many of the first log-probabilities are left out: not wanted, or known from before a restart.
    pub first: u32,
    /// Tokens whose log-probabilities behind the whole prompt are wanted too, token ids as u32 little-endian.
    #[serde(with = "serde_bytes")]
    pub following: Vec<u8>,
}

impl Extension for PromptLogProbsExtension {
    const TAG: &'static str = "prompt_logprobs";
}

/// Gives back the log-probabilities of the next tokens of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptLogProbsExtra {
    /// Records as those of [`SequenceTokens`](pyengine_messages::SequenceTokens); the first four bytes mean nothing.
    #[serde(with = "serde_bytes")]
    pub records: Vec<u8>,
}

impl Extension for PromptLogProbsExtra {
    const TAG: &'static str = "prompt_logprobs";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<PromptLogProbsExtension>()],
    gives: &[ExtensionKind::of::<PromptLogProbsExtra>()],
    make: |_, _| Box::new(PromptScores::default()),
};

/// Bytes of one message of log-probabilities: small beside every ring.
const MESSAGE_BYTES: usize = 1 << 14;

/// What a request wants.
struct Scored {
    /// Most likely tokens beside each.
    count: u8,
    /// The first position whose logits are still wanted, and the one behind the last.
    next: u32,
    end: u32,
    /// Tokens that may follow, until they are scored.
    following: Arc<[u32]>,
}

/// The requests that want their prompts' log-probabilities.
#[derive(Default)]
struct PromptScores {
    requests: PerRequest<Scored>,
    /// Logits of the step, and the most likely tokens that one of its rows wants.
    logits: usize,
    most: u8,
    /// Logits behind prompts for which rows of the step have taken room.
    reserved: usize,
}

impl RowFeature for PromptScores {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let Some(PromptLogProbsExtension { count, first, following }) = submit.extensions.get()? else {
            return Ok(false);
        };
        let pools = submit.extensions.has::<PoolingExtension>();
        let following: Arc<[u32]> = token_ids(&following);
        let unsound = usize::from(count) > MAX_LOGPROBS || following.len() > MAX_FOLLOWING;
        if unsound || first >= submit.prompt_length || pools {
            return Err(Error::InvalidArgument("a prompt's log-probabilities are out of range".into()));
        }
        let end = submit.prompt_length - 1;
        self.requests.insert(id, Scored { count, next: first, end, following });
        Ok(true)
    }

    /// The tokens before the first whose logits are wanted.
    fn reusable(&self, id: RequestId) -> u32 {
        match self.requests.get(id) {
            Some(scored) if scored.next < scored.end || !scored.following.is_empty() => scored.next,
            _ => u32::MAX,
        }
    }

    fn begin_plan(&mut self, _table: &SequenceTable, _running: &[Runner]) {
        self.reserved = 0;
    }

    fn reserve(&mut self, id: RequestId, _ahead: usize) -> bool {
        let wanted = self.requests.get(id).map_or(0, |scored| scored.following.len());
        let fits = self.reserved + wanted <= MAX_FOLLOWING;
        self.reserved += if fits { wanted } else { 0 };
        fits
    }

    fn begin_step(&mut self) {
        (self.logits, self.most) = (0, 0);
    }

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let scored = self.requests.get(row.request)?;
        let end = row.start + row.tokens.len() as u32;
        let (wanted, first) = (row.start.max(scored.next)..end.min(scored.end), self.logits);
        let behind = (row.start..end).contains(&scored.end);
        let following = if behind { &scored.following[..] } else { &[] };
        if wanted.is_empty() && following.is_empty() {
            return None;
        }
        for position in wanted {
            out.prompt_token[self.logits] = (row.tokens.start + (position - row.start) as usize) as i32;
            out.prompt_target[self.logits] = row.known[position as usize + 1] as i32;
            self.logits += 1;
        }
        for token in following {
            out.prompt_token[self.logits] = (row.tokens.start + (scored.end - row.start) as usize) as i32;
            out.prompt_target[self.logits] = *token as i32;
            self.logits += 1;
        }
        self.most = self.most.max(scored.count);
        Some(first..self.logits)
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_prompt_logits = self.logits as i64;
        header.max_prompt_logprobs = i64::from(self.most);
    }

    fn fault(&self, results: &StepBuffers<'_>, own: Range<usize>) -> Option<&'static str> {
        let finite = results.prompt_logprobs[own].iter().all(|number| number.is_finite());
        (!finite).then_some(NOT_FINITE)
    }

    /// Sends the log-probabilities.
    fn take(&mut self, who: Who, results: &StepBuffers<'_>, own: Range<usize>, outbox: &mut Outbox) {
        let Some(scored) = self.requests.get_mut(who.id) else { return };
        let prompts = (scored.end - scored.next).min(own.len() as u32);
        scored.next += prompts;
        if own.len() > prompts as usize {
            scored.following = [].into();
        }
        let count = usize::from(scored.count);
        let each = (MESSAGE_BYTES / (8 * (count + 1))).max(1);
        let logprobs = LogProbs::of_prompts(results);
        for first in own.clone().step_by(each) {
            let mut records = Vec::new();
            logprobs.write(first..own.end.min(first + each), count, &mut records);
            outbox.extra(who.key, &PromptLogProbsExtra { records });
        }
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
