//! `submit`: a submission becomes a request that waits, or one that ends at once.
//!
//! ```text
//!   Submit ──check──► announced ──judge──► is prepared, or waits in the queue
//!                                  └─────► refused: unsound, already over, too long, or the queue is full
//! ```
//!
//! Every request is announced to the detokenizer, also one that ends at once: its answer goes out that way.
//! O(bytes + log waiting).

use super::{Lifecycle, Limits};
use crate::features::row_feature::Terms;
use crate::queue::policy::Ticket;
use crate::queue::requests::Request;
use crate::step::Steps;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{Counts, FinishReason, OpenStream, Submit, TokensRef, token_ids};

impl Lifecycle {
    /// Takes in a request whose key is new.
    pub(super) fn submit(&mut self, kv: &mut KvAllocator, steps: &mut Steps, mut body: Submit) -> Result<()> {
        let tokens: Vec<u32> = token_ids(&body.tokens);
        let id = self.requests.next_id();
        let checked = check(&body, &tokens).and_then(|()| self.features.begin(id, &body, &tokens));
        let announced = self.announce(&mut body, checked.as_ref().ok());
        let tenant = body.tenant;
        let request = self.request(id, body, tokens, checked.as_ref().ok());
        let verdict = match (&announced, &checked) {
            (Ok(true), Ok(terms)) => self.judge(&request, terms.prepares, steps.running().len()),
            _ => Some((FinishReason::Error, None)),
        };
        if let Some((reason, stop_token)) = verdict {
            self.features.leave(id);
            if reason == FinishReason::Error {
                let why = match (&announced, &checked) {
                    (Ok(true), Ok(_)) => "the prompt is longer than the KV cache".into(),
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
        match checked {
            Ok(Terms { prepares: true, .. }) => self.prepare(kv, steps, id),
            _ => self.queue.enter(&self.requests.get(id).ticket),
        }
        Ok(())
    }

    fn accept(&mut self, id: RequestId, mut request: Request, tenant: u64) {
        request.ticket.tenant = self.queue.accept(id, tenant, request.deadline_ns);
        let inserted = self.requests.insert(request);
        debug_assert_eq!(inserted, id);
    }

    /// Tells the detokenizer of a request, and what a sound one, which has `terms`, generated before a restart. False if
    /// that is too much for its ring.
    fn announce(&mut self, body: &mut Submit, terms: Option<&Terms>) -> Result<bool> {
        let generated = match terms {
            Some(_) => body.tokens[body.prompt_length as usize * 4..].to_vec(),
            None => Vec::new(),
        };
        self.outbox.open(OpenStream {
            key: body.key,
            prompt_length: body.prompt_length,
            generated,
            stop: std::mem::take(&mut body.stop),
            include_stop: body.include_stop,
            skip_special_tokens: body.skip_special_tokens,
            places: terms.is_some_and(|terms| terms.places),
        })
    }

    /// The request of a submission, before it has run.
    fn request(&mut self, id: RequestId, body: Submit, tokens: Vec<u32>, terms: Option<&Terms>) -> Request {
        let (samples, salt) = terms.map_or((false, 0), |terms| (terms.samples, terms.salt));
        let context = self.limits.max_context.min(self.limits.capacity.saturating_add(1));
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
            salt: body.cache_salt ^ salt,
            long: false,
            deadline_ns: body.deadline_ns,
            admitted: false,
            counts: Counts::default(),
            untold: true,
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
    /// An answer that was generated before a restart may be over by what its feature `prepares` later. `running` sequences
    /// run.
    fn judge(
        &self,
        request: &Request,
        prepares: bool,
        running: usize,
    ) -> Option<(FinishReason, Option<u32>)> {
        let known = request.tokens.len() as u32;
        let Limits { max_context, max_waiting, capacity, concurrency } = self.limits;
        let longest = max_context.min(capacity);
        if request.prompt_length > longest {
            return Some((FinishReason::Error, None));
        }
        let last = *request.tokens.last()?;
        let resumed = known > request.prompt_length;
        if resumed && request.stops_at(last, known) {
            return Some((FinishReason::Stop, Some(last)));
        }
        if known >= request.limit && !prepares {
            return Some((FinishReason::Length, None));
        }
        // Submissions that come together are judged before any of them is admitted: free places of the sequence table
        // count as places to wait in. A stream that goes on after a restart had its place already.
        let places = max_waiting + concurrency.saturating_sub(running);
        let waiting = self.queue.len() + self.queue.preparing();
        (!resumed && waiting >= places).then_some((FinishReason::Overloaded, None))
    }

    /// Ends a request that never began.
    fn refuse(&mut self, request: &Request, reason: FinishReason, stop_token: Option<u32>) {
        let generated = (request.tokens.len() as u32).saturating_sub(request.prompt_length);
        self.distributions.ended(request, generated, reason, self.now_ns);
        self.outbox.row(TokensRef { finish: Some(reason), stop_token, ..request.row(&[]) });
        self.counters.finished(reason);
    }
}

/// `InvalidArgument` for tokens that no frontend would send; the client is told, as its request ends with an error.
fn check(body: &Submit, tokens: &[u32]) -> Result<()> {
    let sound = body.tokens.len() == tokens.len() * 4
        && (1..=tokens.len()).contains(&(body.prompt_length as usize))
        && tokens.iter().all(|token| *token <= i32::MAX as u32);
    sound.then_some(()).ok_or_else(|| Error::InvalidArgument("a request's tokens are out of range".into()))
}
