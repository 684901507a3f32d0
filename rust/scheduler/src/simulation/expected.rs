//! The output that a request must have.

use std::sync::Arc;

use super::extensions::asked;
use super::grammar::Threes;
use super::model::{STOP_TOKEN, choose, extend, mix};
use super::penalties::{digest, recount};
use crate::features::grammars::GrammarExtension;
use crate::features::pooling::{Pooling, PoolingExtension};
use crate::features::prompt_logprobs::PromptLogProbsExtension;
use crate::features::thinking_budget::ThinkingBudgetExtension;
use pyengine_grammar::Grammar;
use pyengine_messages::{FinishReason, Submit, token_ids};

/// A request's features, and the tokens it would have if nothing ever ended it.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) submit: Submit,
    pub(super) tokens: Vec<u32>,
}

/// The length of the answer that `submit`'s grammar allows, if it has one.
pub(super) fn grammar_length(submit: &Submit) -> Option<u8> {
    asked::<GrammarExtension>(submit).map(|grammar| grammar.description[0])
}

/// The marks of reasoning: the first opens it, the others close it.
const MARKS: [u32; 3] = [5, 7, 9];
/// Tokens that may come before the reasoning is opened.
const LEAD: usize = 4;

/// Bounds the reasoning of `submit`, which its prompt has opened, or not.
pub(super) fn budget(tokens: u32, begun: bool) -> ThinkingBudgetExtension {
    let bytes = |marks: &[u32]| marks.iter().flat_map(|mark| mark.to_le_bytes()).collect();
    ThinkingBudgetExtension {
        tokens,
        open: bytes(&MARKS[..1]),
        close: bytes(&MARKS[1..]),
        begun,
        again: false,
    }
}

/// The token that must come behind `answer`, as its thinking budget is spent.
fn forced(submit: &Submit, answer: &[u32]) -> Option<u32> {
    let budget = asked::<ThinkingBudgetExtension>(submit)?;
    let opened = answer.iter().take(LEAD + 1).position(|token| *token == MARKS[0]);
    let thoughts = &answer[if budget.begun { 0 } else { opened? + 1 }..];
    let ended = thoughts.iter().position(|token| *token == MARKS[1]).unwrap_or(thoughts.len());
    let spent = ended >= budget.tokens as usize;
    MARKS[1..].get(thoughts.len().checked_sub(budget.tokens as usize)?).copied().filter(|_| spent)
}

impl Expected {
    pub(super) fn new(submit: Submit, prompt: &[u32], resumed: usize, context: usize) -> Self {
        let mut tokens = prompt.to_vec();
        let mut chain = tokens.iter().fold(0, |chain, token| extend(chain, *token));
        let mut grammar = grammar_length(&submit).map(|length| Threes::new(length.into()));
        for position in prompt.len()..prompt.len() + submit.max_tokens as usize + 8 {
            let free = grammar.as_ref().is_none_or(Grammar::is_terminated);
            let early = position - prompt.len() + 1 < submit.min_tokens as usize;
            let forced = forced(&submit, &tokens[prompt.len()..]);
            let allows = |token| {
                if let Some(forced) = forced {
                    return token == forced;
                }
                let follows = grammar.as_ref().is_some_and(|grammar| grammar.allows(token));
                free || (follows && !(early && token == STOP_TOKEN))
            };
            let penalties = recount(&submit, prompt, &tokens[prompt.len()..]);
            let penalized = mix(chain, digest(penalties.into_iter()));
            let token = choose(penalized, submit.sampling.seed, position as u64, allows);
            grammar.as_mut().map(|grammar| grammar.advance(token));
            tokens.push(token);
            chain = extend(chain, token);
        }
        let mut expected = Self { submit, tokens };
        // A request that is submitted again had not ended.
        let known = (prompt.len() + resumed).min(expected.end(context).0.max(prompt.len()));
        let words = expected.tokens[..known].iter().flat_map(|token| token.to_le_bytes());
        expected.submit.tokens = words.collect();
        expected
    }

    /// Whether the draft model is wrong at this position: seldom or often, as the request goes.
    pub(super) fn misleads(&self, position: usize) -> bool {
        let one_in = 1 + self.submit.key.request % 5;
        mix(self.submit.key.request, position as u64).is_multiple_of(one_in + 1)
    }

    /// The length at which the request ends by itself, and why.
    pub(super) fn end(&self, context: usize) -> (usize, FinishReason) {
        let prompt = self.submit.prompt_length as usize;
        if self.submit.extensions.has::<PoolingExtension>() {
            return (prompt, FinishReason::Stop);
        }
        if self.submit.max_tokens == 0 {
            return (prompt, FinishReason::Length);
        }
        let limit = (prompt + self.submit.max_tokens as usize).min(context);
        if let Some(length) = grammar_length(&self.submit) {
            let answer = self.tokens[prompt..].iter().position(|token| *token == STOP_TOKEN);
            let length = prompt + answer.map_or(usize::MAX / 2, |at| at + 1).min(length.into());
            let reason = if length <= limit { FinishReason::Stop } else { FinishReason::Length };
            return (length.min(limit), reason);
        }
        for length in prompt + 1..=limit {
            let stops = self.submit.stop_token_ids.contains(&self.tokens[length - 1]);
            if stops && length - prompt >= self.submit.min_tokens as usize {
                return (length, FinishReason::Stop);
            }
        }
        (limit, FinishReason::Length)
    }
}

/// The stand-in for the hidden state behind a prefix, by its chain: whole numbers, of which sums are exact.
pub(super) fn state(chain: u64) -> [f32; 2] {
    [(chain % 64) as f32, 1.0]
}

/// The vector of a prompt.
pub(super) fn vector(pooling: Pooling, prompt: &[u32]) -> [f32; 2] {
    let mut chain = 0;
    let states = prompt.iter().map(|token| {
        chain = extend(chain, *token);
        state(chain)
    });
    match pooling {
        Pooling::Last => states.last().unwrap(),
        Pooling::Mean => sum(states).map(|sum| sum / prompt.len() as f32),
    }
}

/// The stand-in for the log-probability of a token of a prompt behind the prefix with this chain.
pub(super) fn score(chain: u64, target: u32) -> f32 {
    (extend(chain, target) % 4096) as f32
}

/// Those of a prompt, from the second token on.
pub(super) fn scores(prompt: &[u32]) -> Vec<f32> {
    let mut chain = 0;
    let pairs = prompt.windows(2).map(|pair| {
        chain = extend(chain, pair[0]);
        score(chain, pair[1])
    });
    pairs.collect()
}

/// The scores of the tokens that may follow a prompt.
pub(super) fn following(prompt: &[u32], wanted: &PromptLogProbsExtension) -> Vec<f32> {
    let chain = prompt.iter().fold(0, |chain, token| extend(chain, *token));
    let tokens: Arc<[u32]> = token_ids(&wanted.following);
    tokens.iter().map(|token| score(chain, *token)).collect()
}

pub(super) fn sum(states: impl Iterator<Item = [f32; 2]>) -> [f32; 2] {
    states.fold([0.0; 2], |sum, state| [sum[0] + state[0], sum[1] + state[1]])
}
