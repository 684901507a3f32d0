//! `finish` and `preempt`: how a request leaves the running sequences, or the planner.
//!
//! Both cost O(blocks of the sequence + log running); neither waits for steps in flight, whose rows for the sequence
//! are void from then on. Its blocks are free at once: the device runs steps in order, so whoever gets them next writes
//! them after the last step that knew the old owner.

use crate::error::{Error, Result};
use crate::kv_allocator::KvAllocator;
use crate::messages::FinishReason;
use crate::scheduler::outbox::OutRow;
use crate::scheduler::planner::{Planner, finish_index};
use crate::scheduler::step::sequence_table::RequestId;
use crate::telemetry::Stage;

impl Planner {
    /// Ends every request of the oldest step in flight with `error`; returns how many. Those of other steps that may have
    /// built on it begin again.
    pub fn fail_step(&mut self, kv: &mut KvAllocator) -> Result<usize> {
        let Some(record) = self.in_flight.pop_front() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let mut ended = 0;
        for row in &record.rows {
            if self.table.is_current(row.slot, row.generation) {
                self.finish(kv, self.table.request[row.slot as usize], FinishReason::Error);
                ended += 1;
            }
        }
        self.retract(kv, &record);
        self.recycle(record);
        self.flush(Stage::Commit)?;
        Ok(ended)
    }

    /// Ends everything with `error` and forgets the steps in flight, which must not be committed any more; returns
    /// how many requests ended.
    pub fn abort_all(&mut self, kv: &mut KvAllocator) -> Result<usize> {
        while let Some(record) = self.in_flight.pop_front() {
            kv.forget(&record.published);
            self.recycle(record);
        }
        self.timeline.set_in_flight_since(0);
        let ids = self.requests.ids();
        ids.iter().for_each(|id| self.finish(kv, *id, FinishReason::Error));
        self.flush(Stage::Commit)?;
        Ok(ids.len())
    }

    /// Ends what is past its deadline.
    pub(in crate::scheduler) fn expire(&mut self, kv: &mut KvAllocator, now_ns: u64) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now_ns {
                return;
            }
            self.finish(kv, id, FinishReason::Timeout);
        }
    }

    /// Ends a request and tells the detokenizer.
    pub(in crate::scheduler) fn finish(&mut self, kv: &mut KvAllocator, id: RequestId, reason: FinishReason) {
        let request = self.requests.get(id);
        self.outbox.row(OutRow { finish: Some(reason), ..request.row() }, &[]);
        self.end(kv, id, reason);
    }

    /// Ends a request of which the detokenizer knows, or is told by the caller.
    pub(in crate::scheduler) fn end(&mut self, kv: &mut KvAllocator, id: RequestId, reason: FinishReason) {
        let request = self.requests.get(id);
        let known =
            request.slot.map_or(request.tokens.len() as u32, |slot| self.table.progress[slot as usize].known);
        self.distributions.ended(request, known - request.prompt_length, reason, self.now_ns);
        match request.slot {
            // After an error nobody knows what the cache holds.
            Some(slot) => {
                self.vacate(kv, slot, reason != FinishReason::Error);
                self.close_drafting(slot, reason != FinishReason::Error);
            }
            None if request.compiling => self.stop_compiling(id),
            None => self.waiting.remove(&self.requests.get(id).ticket),
        }
        let Some(request) = self.requests.remove(id) else { return };
        self.deadlines.remove(&(request.deadline_ns, id));
        self.tenants.leave(request.ticket.tenant);
        self.counters.finished[finish_index(reason)] += 1;
        self.stuck = None;
    }

    /// Sends a running sequence back to the queue. What is computed and committed stays cached while there is room;
    /// tokens that steps in flight sample for it are dropped and will be sampled again, as they are a function of
    /// the tokens before them and of their position.
    pub(in crate::scheduler) fn preempt(&mut self, kv: &mut KvAllocator, slot: u32) {
        let tokens = std::mem::take(&mut self.table.tokens[slot as usize]);
        self.remember(kv, slot, &tokens);
        self.table.tokens[slot as usize] = tokens;
        self.requeue(kv, slot);
    }

    /// The same, with nothing kept of what it computed.
    pub(in crate::scheduler) fn requeue(&mut self, kv: &mut KvAllocator, slot: u32) {
        let id = self.table.request[slot as usize];
        let tokens = std::mem::take(&mut self.table.tokens[slot as usize]);
        self.vacate(kv, slot, false);
        self.close_drafting(slot, false);
        let request = self.requests.get_mut(id);
        request.tokens = tokens;
        request.slot = None;
        request.ticket.resumed = true;
        self.waiting.push(&request.ticket, &mut self.tenants);
        self.counters.preemptions += 1;
        self.stuck = None;
    }

    /// Puts the full blocks of what is committed into the prefix tree, generated tokens too.
    pub(in crate::scheduler) fn remember(&mut self, kv: &mut KvAllocator, slot: u32, tokens: &[u32]) {
        let committed = self.table.progress[slot as usize].committed as usize;
        let salt = self.requests.get(self.table.request[slot as usize]).salt;
        if kv.insert(salt, &tokens[..committed], &self.table.blocks[slot as usize]) > 0 {
            self.stuck = None; // the head of the queue may find more of its prompt now
        }
    }

    /// Takes a sequence out of the table.
    fn vacate(&mut self, kv: &mut KvAllocator, slot: u32, remember: bool) {
        let at = slot as usize;
        if remember {
            let tokens = std::mem::take(&mut self.table.tokens[at]);
            self.remember(kv, slot, &tokens);
            self.table.tokens[at] = tokens;
        }
        kv.release(&self.table.blocks[at]);
        self.table.blocks[at].clear();
        self.penalized -= usize::from(self.requests.get(self.table.request[at]).penalties.is_some());
        let order = self.table.order[at];
        if let Ok(position) = self.running.binary_search_by_key(&order, |runner| runner.order) {
            self.running.remove(position);
        }
        self.table.release(slot);
    }
}
