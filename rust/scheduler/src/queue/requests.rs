//! The requests that the planner knows, waiting or running: what a request is, whatever features it has.
//!
//! Features keep their own state of a request, see [`features`](crate::features). A slab: insert,
//! remove and look up by id or key in O(1).

use pyengine_kernels_cpu::sampler::SamplingRow;
use rustc_hash::FxHashMap;

use super::policy::Ticket;
use crate::rotation;
use crate::step::sequence_table::RequestId;
use pyengine_messages::{Counts, FinishReason, RequestKey, TokensRef};

/// Whether a request takes a token, and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It goes on.
    Goes,
    /// It ends, with this stop token if it was one.
    Ends(FinishReason, Option<u32>),
    /// The token is not part of the answer: a feature refused it, and another must come in its place.
    GivenBack,
}

/// One request.
pub struct Request {
    /// Its name in messages.
    pub key: RequestKey,
    /// Prompt and generated tokens; they lie in the sequence table while the request runs.
    pub tokens: Vec<u32>,
    /// How many of the tokens are the prompt.
    pub prompt_length: u32,
    /// The request ends when it has this many tokens.
    pub limit: u32,
    /// Fewest generated tokens before a stop token ends it.
    pub min_tokens: u32,
    /// How its tokens are chosen.
    pub sampling: SamplingRow,
    /// Tokens that end it.
    pub stop_token_ids: Vec<u32>,
    /// Tokens follow its prompt; one without is over when its prompt is computed.
    pub samples: bool,
    /// As many of its first tokens may come from the prefix cache; the others are computed for it.
    pub reusable: u32,
    /// It shares prefixes with requests of the same salt only.
    pub salt: u64,
    /// It has the rotations of long sequences, and a salt of its own for them.
    pub long: bool,
    /// Clock at which it is given up; 0 is never.
    pub deadline_ns: u64,
    /// It has been admitted. What other requests compute of its prompt later is not counted.
    pub admitted: bool,
    pub counts: Counts,
    /// The detokenizer does not know the counts yet.
    pub untold: bool,
    /// Clock at its last token; 0 before the first.
    pub last_token_ns: u64,
    /// Its place in the queue.
    pub ticket: Ticket,
    /// Its index in the sequence table while it runs.
    pub slot: Option<u32>,
}

impl Request {
    /// Whether `token` ends the request, being the last of `known` tokens.
    pub fn stops_at(&self, token: u32, known: u32) -> bool {
        known - self.prompt_length >= self.min_tokens && self.stop_token_ids.contains(&token)
    }

    /// Whether the request goes on after `token`, the last of `known`, where no feature objects.
    pub fn verdict(&self, token: u32, known: u32) -> Taken {
        if self.stops_at(token, known) {
            Taken::Ends(FinishReason::Stop, Some(token))
        } else if known >= self.limit {
            Taken::Ends(FinishReason::Length, None)
        } else {
            Taken::Goes
        }
    }

    /// From now on it has the rotations of long sequences: what was computed for it is none of its own any more.
    pub fn lengthen(&mut self) {
        self.long = true;
        self.salt = rotation::salt_of_long(self.salt);
    }

    /// A message with these new tokens.
    pub fn row<'a>(&self, tokens: &'a [u32]) -> TokensRef<'a> {
        TokensRef {
            key: self.key,
            tokens,
            counts: self.untold.then_some(self.counts),
            ..TokensRef::default()
        }
    }
}

/// All requests.
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
    #[inline]
    pub fn get(&self, id: RequestId) -> &Request {
        self.slots[id as usize].as_ref().expect("ids live as long as their requests")
    }

    /// A preempted request waits again, with its tokens.
    pub fn requeue(&mut self, id: RequestId, tokens: Vec<u32>) -> &Ticket {
        let request = self.get_mut(id);
        request.tokens = tokens;
        request.slot = None;
        request.ticket.resumed = true;
        &request.ticket
    }

    /// The request gets a token at `now_ns`; returns when it got the one before, 0 for the first.
    pub fn stamp_token(&mut self, id: RequestId, now_ns: u64) -> u64 {
        std::mem::replace(&mut self.get_mut(id).last_token_ns, now_ns)
    }

    /// More of its first tokens may come from the prefix cache when it is admitted again.
    pub fn reuse(&mut self, id: RequestId, reusable: u32) {
        self.get_mut(id).reusable = reusable;
    }

    /// Drafts of a request were verified: how many were right, and how many wrong.
    pub fn count_drafts(&mut self, id: RequestId, accepted: u32, rejected: u32) {
        let request = self.get_mut(id);
        request.counts.accepted_drafts += accepted;
        request.counts.rejected_drafts += rejected;
        request.untold = true;
    }

    /// A request gets a place in the sequence table, whose tree had `computed` of its tokens, at `now_ns`. Returns its
    /// tokens, which lie in the table from now on, and how long it waited if this is the first time.
    pub fn admit(&mut self, id: RequestId, slot: u32, computed: u32, now_ns: u64) -> (Vec<u32>, Option<u64>) {
        let request = self.get_mut(id);
        request.slot = Some(slot);
        let known = request.tokens.len() as u32;
        let mut tokens = std::mem::take(&mut request.tokens);
        tokens.reserve((request.limit - known) as usize);
        if std::mem::replace(&mut request.admitted, true) {
            return (tokens, None);
        }
        request.counts.cached_tokens = computed.min(request.prompt_length);
        let waited_ns = now_ns - request.ticket.arrival_ns.min(now_ns);
        request.counts.queued_us = u32::try_from(waited_ns / 1000).unwrap_or(u32::MAX);
        (tokens, Some(waited_ns))
    }

    /// A message with new tokens of a request, after which its counts are told.
    pub fn tell<'a>(&mut self, id: RequestId, tokens: &'a [u32]) -> TokensRef<'a> {
        let request = self.get_mut(id);
        let row = request.row(tokens);
        request.untold = false;
        row
    }

    /// A request that is there, to change it.
    fn get_mut(&mut self, id: RequestId) -> &mut Request {
        self.slots[id as usize].as_mut().expect("ids live as long as their requests")
    }

    /// A request of `known` tokens is to be admitted: see [`rotation`].
    pub fn settle_rotation(&mut self, id: RequestId, short_context: usize) {
        let request = self.get_mut(id);
        if !request.long && rotation::is_long(request.tokens.len(), short_context) {
            request.lengthen();
        }
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
