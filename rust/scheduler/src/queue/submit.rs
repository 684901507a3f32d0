//! `submit`: a submission becomes a request that waits, or one that ends at once.
//!
//! ```text
//!   Submit ──check──► announced ──judge──► waits for its grammar, or in the queue
//!                                  └─────► refused: unsound, already over, too long, or the queue is full
//! ```
//!
//! Every request is announced to the detokenizer, also one that ends at once: its answer goes out that way.
//! O(bytes + log waiting).

use super::policy::Ticket;
use super::requests::Request;
use crate::outbox::OutRow;
use crate::planner::Planner;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, OpenStream, Submit};

impl Planner {
    /// Takes in a request whose key is new.
    pub(super) fn submit(&mut self, kv: &mut KvAllocator, mut body: Submit) -> Result<()> {
        let tokens: Vec<u32> = token_ids(&body.tokens);
        let id = self.requests.next_id();
        let checked = check(&body, &tokens).and_then(|()| self.features.begin(id, &body, &tokens));
        let announced = self.announce(id, &mut body, checked.is_ok());
        let tenant = body.tenant;
        let constrained = self.features.grammars.constrains(id);
        let request = self.request(id, body, tokens);
        let verdict = match announced {
            Ok(whole) if whole && checked.is_ok() => self.judge(&request, constrained),
            _ => Some((FinishReason::Error, None)),
        };
        if let Some((reason, stop_token)) = verdict {
            self.features.leave(id);
            if reason == FinishReason::Error {
                let why = match (&announced, &checked) {
                    (Ok(true), Ok(())) => "the prompt is longer than the KV cache".into(),
                    (_, Err(error)) => error.to_string(),
                    _ => "the request is too large for the engine's queues".into(),
                };
                self.tell(request.key, why);
            }
            if announced.is_ok() {
                self.refuse(&request, reason, stop_token);
            }
            return announced.map(drop);
        }
        self.accept(id, request, tenant);
        if constrained {
            return self.ask_for_grammar(kv, id);
        }
        self.queue.waiting.push(&self.requests.get(id).ticket, &mut self.queue.tenants);
        Ok(())
    }

    fn accept(&mut self, id: RequestId, mut request: Request, tenant: u64) {
        request.ticket.tenant = self.queue.tenants.enter(tenant);
        if request.deadline_ns > 0 {
            self.queue.deadlines.insert((request.deadline_ns, id));
        }
        let inserted = self.requests.insert(request);
        debug_assert_eq!(inserted, id);
    }

    /// Tells the detokenizer of a request, and what a `sound` one generated before a restart. False if that is too much
    /// for its ring.
    fn announce(&mut self, id: RequestId, body: &mut Submit, sound: bool) -> Result<bool> {
        let generated =
            if sound { body.tokens[body.prompt_length as usize * 4..].to_vec() } else { Vec::new() };
        self.outbox.open(OpenStream {
            key: body.key,
            prompt_length: body.prompt_length,
            generated,
            stop: std::mem::take(&mut body.stop),
            include_stop: body.include_stop,
            skip_special_tokens: body.skip_special_tokens,
            logprobs: self.features.logprobs.wanted(id),
        })
    }

    /// The request of a submission, before it has run.
    fn request(&mut self, id: RequestId, body: Submit, tokens: Vec<u32>) -> Request {
        let context = (self.config.max_context as u32).min(self.capacity.saturating_add(1));
        let samples = body.max_tokens > 0 && !self.features.pooling.pools(id);
        Request {
            key: body.key,
            tokens,
            prompt_length: body.prompt_length,
            // The token that a request ends without needs no room.
            limit: match samples {
                false => body.prompt_length + 1,
                true => body.prompt_length.saturating_add(body.max_tokens).min(context),
            },
            samples,
            reusable: self.features.reusable(id),
            min_tokens: body.min_tokens,
            sampling: body.sampling,
            stop_token_ids: body.stop_token_ids,
            salt: body.cache_salt,
            long: false,
            deadline_ns: body.deadline_ns,
            cached_tokens: None,
            queued_us: 0,
            last_token_ns: 0,
            ticket: Ticket {
                id,
                class: body.priority,
                tenant: 0,
                arrival_ns: body.arrival_ns,
                serial: self.queue.next_serial(),
                resumed: false,
            },
            slot: None,
        }
    }

    /// How a request ends before it began, if it does. A prompt that the context or the cache can never hold is an
    /// error; an answer that they cannot hold is cut short later.
    ///
    /// An answer that was generated `constrained` before a restart may be over by its grammar, which is compiled later.
    fn judge(&self, request: &Request, constrained: bool) -> Option<(FinishReason, Option<u32>)> {
        let known = request.tokens.len() as u32;
        let longest = (self.config.max_context as u32).min(self.capacity);
        if request.prompt_length > longest {
            return Some((FinishReason::Error, None));
        }
        let last = *request.tokens.last()?;
        let resumed = known > request.prompt_length;
        if resumed && request.stops_at(last, known) {
            return Some((FinishReason::Stop, Some(last)));
        }
        if known >= request.limit && !constrained {
            return Some((FinishReason::Length, None));
        }
        // Submissions that come together are judged before any of them is admitted: free places of the sequence table
        // count as places to wait in. A stream that goes on after a restart had its place already.
        let places = self.config.max_waiting + self.concurrency.saturating_sub(self.steps.running().len());
        let waiting = self.queue.len() + self.features.grammars.compiling();
        (!resumed && waiting >= places).then_some((FinishReason::Overloaded, None))
    }

    /// Ends a request that never began.
    fn refuse(&mut self, request: &Request, reason: FinishReason, stop_token: Option<u32>) {
        let generated = (request.tokens.len() as u32).saturating_sub(request.prompt_length);
        self.distributions.ended(request, generated, reason, self.now_ns);
        self.outbox.row(OutRow { finish: Some(reason), stop_token, ..request.row() }, &[]);
        self.counters.finished(reason);
    }
}

/// Token ids as messages carry them; an incomplete word at the end is left out.
pub(crate) fn token_ids<T: FromIterator<u32>>(bytes: &[u8]) -> T {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// `InvalidArgument` for tokens that no frontend would send; the client is told, as its request ends with an error.
fn check(body: &Submit, tokens: &[u32]) -> Result<()> {
    let sound = body.tokens.len() == tokens.len() * 4
        && (1..=tokens.len()).contains(&(body.prompt_length as usize))
        && tokens.iter().all(|token| *token <= i32::MAX as u32);
    sound.then_some(()).ok_or_else(|| Error::InvalidArgument("a request's tokens are out of range".into()))
}
