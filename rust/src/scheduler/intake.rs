//! `drain`: what the scheduler's mailbox brings.
//!
//! Every request that is taken in is announced to the detokenizer, also when it ends at once: its answer goes out
//! that way. O(bytes + log waiting) a message.

use std::sync::Arc;

use super::closing::Closing;
use super::edits::Edits;
use super::outbox::OutRow;
use super::planner::{Planner, finish_index};
use super::policy::Ticket;
use super::requests::Request;
use super::sequence_table::RequestId;
use crate::error::{Error, Result};
use crate::kv_allocator::KvAllocator;
use crate::messages::{FinishReason, Message, OpenStream, RequestKey, Submit, tag};
use crate::telemetry::Stage;

/// Messages of one call, so that a flood cannot keep the step from running.
const MAX_MESSAGES: usize = 4096;
/// And their bytes, once passed.
const MAX_BYTES: usize = 1 << 20;
/// Most likely tokens that a request may want the log-probabilities of.
const MAX_LOGPROBS: usize = 20;

impl Planner {
    /// Takes in what `receive` brings (it fills the buffer, or says that there is nothing); returns the raw
    /// messages that are not for the planner: other tags, what cannot be read, and a key that is already there.
    ///
    /// Messages are read also while the detokenizer's ring is full: it may be waiting to send to this mailbox.
    pub fn drain(
        &mut self,
        kv: &mut KvAllocator,
        mut receive: impl FnMut(&mut Vec<u8>) -> Result<bool>,
        now_ns: u64,
    ) -> Result<Vec<Vec<u8>>> {
        self.now_ns = now_ns;
        let mut others = Vec::new();
        let mut message = std::mem::take(&mut self.inbox);
        let (mut taken, mut bytes) = (0, 0);
        let received = loop {
            match receive(&mut message) {
                Ok(true) if self.take(kv, &message)? => {}
                Ok(true) => others.push(message.clone()),
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            taken += 1;
            bytes += message.len();
            if taken == MAX_MESSAGES || bytes >= MAX_BYTES {
                break Ok(());
            }
        };
        self.inbox = message;
        if self.compiling > 0 {
            // Also without the message that says so: the ring may have had no room for it.
            self.collect_grammars(kv)?;
        }
        self.expire(kv, now_ns);
        self.flush(Stage::Drain)?;
        match received {
            // What was read before the mailbox closed counts; the next call says that it is closed.
            Err(Error::MailboxClosed) if taken > 0 => Ok(others),
            other => other.map(|()| others),
        }
    }

    /// Takes in one message; false if it is not for the planner.
    fn take(&mut self, kv: &mut KvAllocator, bytes: &[u8]) -> Result<bool> {
        if !matches!(
            tag(bytes),
            Ok("submit" | "abort" | "abort_frontend" | "stop_matched" | "forget_answers" | "grammars_ready")
        ) {
            return Ok(false);
        }
        match Message::decode(bytes) {
            Ok(Message::Submit(body)) if self.requests.find(body.key).is_none() => {
                self.submit(kv, body)?;
                Ok(true)
            }
            Ok(Message::Abort(key)) => {
                if let Some(id) = self.requests.find(key) {
                    self.finish(kv, id, FinishReason::Abort);
                }
                Ok(true)
            }
            Ok(Message::AbortFrontend(below)) => {
                self.abort_frontend(kv, below);
                Ok(true)
            }
            Ok(Message::StopMatched(key)) => {
                // The detokenizer has ended the stream itself.
                if let Some(id) = self.requests.find(key) {
                    self.end(kv, id, FinishReason::Stop);
                }
                Ok(true)
            }
            Ok(Message::ForgetAnswers((tenant, cache_salt))) => {
                self.forget_answers(history_of(tenant, cache_salt));
                Ok(true)
            }
            // It has woken the scheduler, which collects them with every call.
            Ok(Message::GrammarsReady(())) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Ends the requests of a frontend that died. O(all), once a death.
    fn abort_frontend(&mut self, kv: &mut KvAllocator, below: RequestKey) {
        for id in self.requests.ids() {
            let key = self.requests.get(id).key;
            if key.frontend == below.frontend && key.request < below.request {
                self.finish(kv, id, FinishReason::Abort);
            }
        }
    }

    fn submit(&mut self, kv: &mut KvAllocator, body: Submit) -> Result<()> {
        let (words, rest) = body.tokens.as_chunks::<4>();
        let tokens: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let prompt_bytes = (body.prompt_length as usize).saturating_mul(4);
        let generated = body.tokens.get(prompt_bytes..).unwrap_or_default().to_vec();
        let sound = rest.is_empty()
            && body.prompt_length > 0
            && prompt_bytes <= body.tokens.len()
            && tokens.iter().all(|token| *token <= i32::MAX as u32);
        let split = (body.prompt_length as usize).min(tokens.len());
        let (prompt, answer) = tokens.split_at(split);
        let vocab_size = self.layout.vocab_size();
        let edits = body.edits.as_deref().filter(|_| sound);
        let edits =
            edits.map(|rules| Edits::new(rules, vocab_size, prompt, answer).map(Box::new)).transpose();
        let sound =
            sound && edits.is_ok() && body.logprobs.is_none_or(|count| usize::from(count) <= MAX_LOGPROBS);
        let announced = self.outbox.open(OpenStream {
            key: body.key,
            prompt_length: body.prompt_length,
            generated: if sound { generated } else { Vec::new() },
            stop: body.stop,
            include_stop: body.include_stop,
            skip_special_tokens: body.skip_special_tokens,
            logprobs: body.logprobs.is_some(),
        })?;

        let context = (self.config.max_context as u32).min(self.capacity.saturating_add(1));
        let limit = body.prompt_length.saturating_add(body.max_tokens).min(context);
        let id = self.requests.next_id();
        self.serial += 1;
        let mut request = Request {
            key: body.key,
            tokens,
            prompt_length: body.prompt_length,
            limit,
            min_tokens: body.min_tokens,
            sampling: body.sampling,
            stop_token_ids: body.stop_token_ids,
            salt: body.cache_salt,
            deadline_ns: body.deadline_ns,
            cached_tokens: None,
            queued_us: 0,
            last_token_ns: 0,
            ticket: Ticket {
                id,
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
            edits: edits.ok().flatten(),
            logprobs: body.logprobs,
            history: history_of(body.tenant, body.cache_salt),
            prediction: prediction(&body.prediction),
            accepted_drafts: 0,
            rejected_drafts: 0,
        };
        let verdict = if sound && announced {
            self.judge(&request, body.grammar.is_some())
        } else {
            Some((FinishReason::Error, None))
        };
        if let Some((reason, stop_token)) = verdict {
            let generated = (request.tokens.len() as u32).saturating_sub(request.prompt_length);
            self.distributions.ended(&request, generated, reason, self.now_ns);
            self.refuse(request.key, reason, stop_token);
            return Ok(());
        }
        request.ticket.tenant = self.tenants.enter(body.tenant);
        if request.deadline_ns > 0 {
            self.deadlines.insert((request.deadline_ns, id));
        }
        self.requests.insert(request);
        match body.grammar {
            Some(description) => self.ask_for_grammar(kv, id, &description),
            None => {
                self.enqueue(id);
                Ok(())
            }
        }
    }

    /// Lets a request wait for its turn.
    pub(super) fn enqueue(&mut self, id: RequestId) {
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

    fn refuse(&mut self, key: RequestKey, reason: FinishReason, stop_token: Option<u32>) {
        let row = OutRow {
            key,
            finish: Some(reason),
            stop_token,
            cached_tokens: 0,
            queued_us: 0,
            accepted_drafts: 0,
            rejected_drafts: 0,
        };
        self.outbox.row(row, &[]);
        self.counters.finished[finish_index(reason)] += 1;
    }
}

/// Whose recent answers a request is drafted from, and joins: both are hashes of names, and neither alone is enough.
fn history_of(tenant: u64, cache_salt: u64) -> u64 {
    tenant ^ cache_salt.rotate_left(32)
}

/// The token ids of a client's prediction, if there is one.
fn prediction(bytes: &[u8]) -> Option<Arc<[u32]>> {
    let (words, _) = bytes.as_chunks::<4>();
    (!words.is_empty()).then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}
