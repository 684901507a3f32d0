//! `commit`: take the tokens of the oldest step in flight.
//!
//! ```text
//!   for each row:  void (its sequence has ended or was preempted)   its token is dropped
//!                  a chunk of a prompt                              its full blocks go into the prefix tree
//!                  a sampled token                                  append, test for the end, tell the detokenizer
//! ```
//!
//! O(rows), besides the blocks of what ends; one message to the detokenizer.

use super::outbox::OutRow;
use super::planner::Planner;
use crate::error::{Error, Result};
use crate::kv_allocator::KvAllocator;
use crate::messages::FinishReason;
use crate::telemetry::Stage;

impl Planner {
    /// Takes the tokens of the oldest step in flight, one per sampling row, at `now_ns`; returns how many requests
    /// ended.
    ///
    /// A negative token says that the sampler found none (its logits were not finite): that request ends with an
    /// error. Closed (an error) is the detokenizer's mailbox; the state is whole all the same.
    pub fn commit(&mut self, kv: &mut KvAllocator, sampled: &[i32], now_ns: u64) -> Result<usize> {
        let Some(record) = self.in_flight.pop_front() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        if sampled.len() != record.num_sampled {
            let message = format!("the step samples {} tokens, not {}", record.num_sampled, sampled.len());
            self.in_flight.push_front(record);
            return Err(Error::InvalidArgument(message));
        }
        self.now_ns = now_ns;
        let before = self.requests.len();
        let mut tokens = sampled.iter();
        for row in &record.rows {
            let token = if row.samples { tokens.next().copied() } else { None };
            if !self.table.is_current(row.slot, row.generation) {
                continue;
            }
            let progress = &mut self.table.progress[row.slot as usize];
            let prefilled = progress.committed < progress.prefill;
            progress.committed += row.count;
            // A step that found no token to sample has computed nothing that others may build on.
            if prefilled && token.is_none_or(|token| token >= 0) {
                let tokens = std::mem::take(&mut self.table.tokens[row.slot as usize]);
                self.remember(kv, row.slot, &tokens);
                self.table.tokens[row.slot as usize] = tokens;
            }
            if let Some(token) = token {
                self.append(kv, row.slot, token);
            }
        }
        let ended = before - self.requests.len();
        self.recycle(record);
        self.flush(Stage::Commit)?;
        Ok(ended)
    }

    fn append(&mut self, kv: &mut KvAllocator, slot: u32, token: i32) {
        let at = slot as usize;
        let id = self.table.request[at];
        let Ok(token) = u32::try_from(token) else {
            self.finish(kv, id, FinishReason::Error);
            return;
        };
        self.table.tokens[at].push(token);
        let progress = &mut self.table.progress[at];
        progress.known += 1;
        progress.pending -= 1;
        self.tenants.charge(self.table.tenant[at], 1);
        self.counters.completion_tokens += 1;
        let request = self.requests.get_mut(id);
        let number = progress.known - request.prompt_length;
        self.distributions.token(request, number, self.now_ns);
        let stopped = request.stops_at(token, progress.known);
        let finish = match stopped {
            true => Some(FinishReason::Stop),
            false => (progress.known >= progress.limit).then_some(FinishReason::Length),
        };
        self.outbox.row(OutRow {
            key: request.key,
            token: Some(token),
            finish,
            stop_token: stopped.then_some(token),
            cached_tokens: request.cached_tokens.unwrap_or(0),
            queued_us: if number == 1 || finish.is_some() { request.queued_us } else { 0 },
        });
        if let Some(reason) = finish {
            self.end(kv, id, reason);
        }
    }
}
