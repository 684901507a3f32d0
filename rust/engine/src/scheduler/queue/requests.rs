//! The requests that the planner knows, waiting or running: what does not change from step to step.
//!
//! A slab: insert, remove and look up by id or key in O(1).

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::grammar::Grammar;
use crate::messages::{FinishReason, RequestKey, SamplingRules};
use crate::scheduler::features::closing::Closing;
use crate::scheduler::features::penalties::Penalties;
use crate::scheduler::outbox::OutRow;
use crate::scheduler::queue::policy::Ticket;
use crate::scheduler::step::sequence_table::RequestId;

/// What becomes of a request with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It goes on.
    Goes,
    /// It ends, with this stop token if it was one.
    Ends(FinishReason, Option<u32>),
    /// The token is none of it: the answer could not be ended within its limit after it.
    GivenBack,
}

/// What a grammar may take at its beginning, when its automata are built, ...
const GRAMMAR_NS: u64 = 2_000_000_000;
/// ... and for each token besides: more, and every stream would be held up for one.
const GRAMMAR_NS_PER_TOKEN: u64 = 5_000_000;

/// One request.
pub struct Request {
    /// Its name outside.
    pub key: RequestKey,
    /// Prompt and what was generated; lies in the sequence table while the request runs.
    pub tokens: Vec<u32>,
    /// How many of the tokens are the prompt.
    pub prompt_length: u32,
    /// The request ends when it has this many tokens.
    pub limit: u32,
    /// Fewest generated tokens before a stop token ends it.
    pub min_tokens: u32,
    /// How its tokens are chosen.
    pub sampling: SamplingRules,
    /// Tokens that end it.
    pub stop_token_ids: Vec<u32>,
    /// Under which salt it shares prefixes.
    pub salt: u64,
    /// Clock at which it is given up; 0 is never.
    pub deadline_ns: u64,
    /// Prompt tokens that were in the prefix cache when it was first admitted; what others compute of it later is not
    /// counted in.
    pub cached_tokens: Option<u32>,
    /// Microseconds from its arrival to its first admission.
    pub queued_us: u32,
    /// Clock at its last token; 0 before the first.
    pub last_token_ns: u64,
    /// What the queue knows of it.
    pub ticket: Ticket,
    /// Its index in the sequence table while it runs.
    pub slot: Option<u32>,
    /// It waits for its grammar, and is not in the queue yet.
    pub compiling: bool,
    /// How far its answer has come in its grammar, at the last known token. With a step's masks while they are filled.
    pub grammar: Option<Box<dyn Grammar>>,
    /// What its masks and tokens have taken of the scheduler's time.
    pub grammar_ns: u64,
    /// Why its grammar can be followed no further.
    pub complaint: Option<String>,
    /// Ends what the grammar has begun before `limit`.
    pub closing: Option<Closing>,
    /// What is changed in its logits, at the last known token.
    pub penalties: Option<Box<Penalties>>,
    /// Log-probabilities of how many most likely tokens it wants beside each token's own, if any.
    pub logprobs: Option<u8>,
    /// Under which number its answer helps to draft others: those of its tenant under its salt.
    pub history: u64,
    /// What its client expects of it.
    pub prediction: Option<Arc<[u32]>>,
    /// Draft tokens that were right.
    pub accepted_drafts: u32,
    /// And wrong.
    pub rejected_drafts: u32,
}

impl Request {
    /// Whether `token` ends the request, being the last of `known` tokens.
    pub fn stops_at(&self, token: u32, known: u32) -> bool {
        known - self.prompt_length >= self.min_tokens && self.stop_token_ids.contains(&token)
    }

    /// Takes in `token`, the last of `known`. A grammar that allows nothing else ends the request whatever `min_tokens`
    /// says.
    pub fn take(&mut self, token: u32, known: u32, limit: u32, end_tokens: &[u32]) -> Taken {
        let stop = Taken::Ends(FinishReason::Stop, Some(token));
        if let Some(grammar) = &mut self.grammar {
            let ends = end_tokens.contains(&token);
            let begun = Instant::now();
            if self.complaint.is_none() && !grammar.advance(token) {
                // The sampler saw a mask that forbids it.
                return Taken::Ends(FinishReason::Error, None);
            }
            self.grammar_ns += u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if let Some(failure) = grammar.failure() {
                // Its masks allowed only the end, wherever that was: what there is may be half an answer.
                self.complaint = Some(format!("the grammar cannot be followed: {failure}"));
            } else if self.grammar_ns
                > GRAMMAR_NS + u64::from(known - self.prompt_length) * GRAMMAR_NS_PER_TOKEN
            {
                self.complaint = Some("the grammar cannot be followed: it takes too much time".into());
            }
            if self.complaint.is_some() {
                return Taken::Ends(FinishReason::Refused, None);
            }
            if grammar.is_terminated() {
                return if ends { stop } else { Taken::Ends(FinishReason::Stop, None) };
            }
            if let Some(closing) = &mut self.closing
                && !closing.advance(grammar.as_mut(), token, limit - known, end_tokens.first().copied())
            {
                return Taken::GivenBack;
            }
        }
        if self.stops_at(token, known) {
            return stop;
        }
        if known >= limit { Taken::Ends(FinishReason::Length, None) } else { Taken::Goes }
    }

    /// The token that must come next, where the answer is being closed.
    pub fn closing_token(&self) -> Option<u32> {
        self.closing.as_ref().and_then(Closing::next)
    }

    /// What a row of it says besides its tokens.
    pub fn row(&self) -> OutRow {
        OutRow {
            key: self.key,
            finish: None,
            stop_token: None,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            queued_us: self.queued_us,
            accepted_drafts: self.accepted_drafts,
            rejected_drafts: self.rejected_drafts,
        }
    }
}

/// All of them.
#[derive(Default)]
pub struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<RequestId>,
    by_key: FxHashMap<RequestKey, RequestId>,
}

impl Requests {
    /// The id that the next [`insert`](Self::insert) gives.
    pub fn next_id(&self) -> RequestId {
        self.free.last().copied().unwrap_or(self.slots.len() as RequestId)
    }

    /// Takes a request in, whose key must be new.
    pub fn insert(&mut self, request: Request) -> RequestId {
        let id = self.next_id();
        self.by_key.insert(request.key, id);
        if self.free.pop().is_some() {
            self.slots[id as usize] = Some(request);
        } else {
            self.slots.push(Some(request));
        }
        id
    }

    /// Lets a request go.
    pub fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.slots.get_mut(id as usize)?.take()?;
        self.by_key.remove(&request.key);
        self.free.push(id);
        Some(request)
    }

    /// The id of the request with this key.
    pub fn find(&self, key: RequestKey) -> Option<RequestId> {
        self.by_key.get(&key).copied()
    }

    /// A request that is there.
    pub fn get(&self, id: RequestId) -> &Request {
        self.slots[id as usize].as_ref().expect("ids live as long as their requests")
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, id: RequestId) -> &mut Request {
        self.slots[id as usize].as_mut().expect("ids live as long as their requests")
    }

    /// All ids, ascending.
    pub fn ids(&self) -> Vec<RequestId> {
        (0..self.slots.len() as RequestId).filter(|id| self.slots[*id as usize].is_some()).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}
