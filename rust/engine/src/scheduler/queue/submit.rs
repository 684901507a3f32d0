//! `submit`: what is asked for becomes a request that waits, or ends at once.
//!
//! ```text
//!   Submit ──check──► announced ──judge──► waits for its grammar, or its turn
//!                                  └─────► refused: unsound, over, too long or one too many
//! ```
//!
//! Every request that is taken in is announced to the detokenizer, also when it ends at once: its answer goes out
//! that way. O(bytes + log waiting).

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::kv_allocator::KvAllocator;
use crate::messages::{FinishReason, OpenStream, Submit};
use crate::scheduler::features::closing::Closing;
use crate::scheduler::features::penalties::Penalties;
use crate::scheduler::outbox::OutRow;
use crate::scheduler::planner::{Planner, finish_index};
use crate::scheduler::queue::policy::Ticket;
use crate::scheduler::queue::requests::Request;
use crate::scheduler::step::sequence_table::RequestId;

/// Most likely tokens that a request may want the log-probabilities of.
const MAX_LOGPROBS: usize = 20;

impl Planner {
    /// Takes in a request whose key is new.
    pub(in crate::scheduler) fn submit(&mut self, kv: &mut KvAllocator, mut body: Submit) -> Result<()> {
        let tokens: Vec<u32> = token_ids(&body.tokens);
        let checked = check(&body, &tokens, self.layout.vocab_size());
        let whole = self.announce(&mut body, checked.is_ok())?;
        let (tenant, grammar) = (body.tenant, body.grammar.take());
        let sound = checked.is_ok() && whole;
        let mut request = self.request(body, tokens, checked.ok().flatten());
        let verdict = match sound {
            true => self.judge(&request, grammar.is_some()),
            false => Some((FinishReason::Error, None)),
        };
        if let Some((reason, stop_token)) = verdict {
            self.refuse(&request, reason, stop_token);
            return Ok(());
        }
        request.ticket.tenant = self.tenants.enter(tenant);
        let deadline_ns = request.deadline_ns;
        let id = self.requests.insert(request);
        if deadline_ns > 0 {
            self.deadlines.insert((deadline_ns, id));
        }
        match grammar {
            Some(description) => self.ask_for_grammar(kv, id, &description),
            None => {
                self.enqueue(id);
                Ok(())
            }
        }
    }

    /// Tells the detokenizer of a request, and what a `sound` one generated before a restart. False if that is too much
    /// for its ring.
    fn announce(&mut self, body: &mut Submit, sound: bool) -> Result<bool> {
        let generated =
            if sound { body.tokens[body.prompt_length as usize * 4..].to_vec() } else { Vec::new() };
        self.outbox.open(OpenStream {
            key: body.key,
            prompt_length: body.prompt_length,
            generated,
            stop: std::mem::take(&mut body.stop),
            include_stop: body.include_stop,
            skip_special_tokens: body.skip_special_tokens,
            logprobs: body.logprobs.is_some(),
        })
    }

    /// The request that is asked for, as it is before it has begun.
    fn request(&mut self, body: Submit, tokens: Vec<u32>, penalties: Option<Box<Penalties>>) -> Request {
        let context = (self.config.max_context as u32).min(self.capacity.saturating_add(1));
        let prediction: Arc<[u32]> = token_ids(&body.prediction);
        self.serial += 1;
        Request {
            key: body.key,
            tokens,
            prompt_length: body.prompt_length,
            limit: body.prompt_length.saturating_add(body.max_tokens).min(context),
            min_tokens: body.min_tokens,
            sampling: body.sampling,
            stop_token_ids: body.stop_token_ids,
            salt: body.cache_salt,
            deadline_ns: body.deadline_ns,
            cached_tokens: None,
            queued_us: 0,
            last_token_ns: 0,
            ticket: Ticket {
                id: self.requests.next_id(),
                class: body.priority,
                tenant: 0,
                arrival_ns: body.arrival_ns,
                serial: self.serial,
                resumed: false,
            },
            slot: None,
            compiling: false,
            grammar: None,
            grammar_ns: 0,
            complaint: None,
            closing: body.close_grammar.then(Closing::default),
            penalties,
            logprobs: body.logprobs,
            history: history_of(body.tenant, body.cache_salt),
            prediction: Some(prediction).filter(|tokens| !tokens.is_empty()),
            accepted_drafts: 0,
            rejected_drafts: 0,
        }
    }

    /// Lets a request wait for its turn.
    pub(in crate::scheduler) fn enqueue(&mut self, id: RequestId) {
        let request = self.requests.get(id);
        self.waiting.push(&request.ticket, &mut self.tenants);
    }

    /// How a request ends before it began, if it does. A prompt that the context or the cache can never hold is an
    /// error; an answer that they cannot hold is cut short later.
    ///
    /// What was generated `constrained` may have ended as its grammar says, which is seen later.
    fn judge(&self, request: &Request, constrained: bool) -> Option<(FinishReason, Option<u32>)> {
        let known = request.tokens.len() as u32;
        let longest = (self.config.max_context as u32).min(self.capacity);
        if request.prompt_length > longest {
            return Some((FinishReason::Error, None));
        }
        let last = *request.tokens.last()?;
        if known > request.prompt_length && request.stops_at(last, known) {
            return Some((FinishReason::Stop, Some(last)));
        }
        if known >= request.limit && !constrained {
            return Some((FinishReason::Length, None));
        }
        // What comes in together is judged before any of it is admitted: free places count as places to wait in.
        // A stream that goes on after a restart had its place already.
        let places = self.config.max_waiting + self.concurrency.saturating_sub(self.running.len());
        let resumed = known > request.prompt_length;
        (!resumed && self.waiting.len() + self.compiling >= places)
            .then_some((FinishReason::Overloaded, None))
    }

    /// Ends a request that never began.
    fn refuse(&mut self, request: &Request, reason: FinishReason, stop_token: Option<u32>) {
        let generated = (request.tokens.len() as u32).saturating_sub(request.prompt_length);
        self.distributions.ended(request, generated, reason, self.now_ns);
        self.outbox.row(OutRow { finish: Some(reason), stop_token, ..request.row() }, &[]);
        self.counters.finished[finish_index(reason)] += 1;
    }
}

/// Whose recent answers a request is drafted from, and joins: both are hashes of names, and neither alone is enough.
pub(in crate::scheduler) fn history_of(tenant: u64, cache_salt: u64) -> u64 {
    tenant ^ cache_salt.rotate_left(32)
}

/// Token ids as messages carry them; what is no whole word at the end is left out.
fn token_ids<T: FromIterator<u32>>(bytes: &[u8]) -> T {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The penalties that a request asks for, if any. An error if no frontend would ask like this: it is told to nobody but
/// by the request's end.
fn check(body: &Submit, tokens: &[u32], vocab_size: usize) -> Result<Option<Box<Penalties>>> {
    let split = body.prompt_length as usize;
    let sound = body.tokens.len() == tokens.len() * 4
        && (1..=tokens.len()).contains(&split)
        && tokens.iter().all(|token| *token <= i32::MAX as u32)
        && body.logprobs.is_none_or(|count| usize::from(count) <= MAX_LOGPROBS);
    if !sound {
        return Err(Error::InvalidArgument(
            "a request's tokens or log-probabilities are out of range".into(),
        ));
    }
    let (prompt, generated) = tokens.split_at(split);
    let penalties = body.penalties.as_deref();
    penalties.map(|rules| Penalties::new(rules, vocab_size, prompt, generated).map(Box::new)).transpose()
}
