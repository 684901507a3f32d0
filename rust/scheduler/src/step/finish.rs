//! `finish` and `preempt`: how a request leaves the running sequences, or the planner.
//!
//! Both cost O(blocks of the sequence + log running); neither waits for steps in flight, whose rows for the sequence
//! are void from then on. Its blocks are free at once: the device runs steps in order, so their next owner writes
//! them after the last step that knew the old one.

use super::sequence_table::RequestId;
use super::{StepRecord, Steps};
use crate::outbox::OutRow;
use crate::planner::Planner;
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, Message, Notice, RequestKey};

impl Planner {
    /// Ends the requests of a step that failed; returns how many. Those of other steps that may have built on it begin
    /// again.
    pub(crate) fn fail(&mut self, kv: &mut KvAllocator, record: StepRecord, why: &str) -> usize {
        let mut ended = 0;
        for row in &record.rows {
            if self.steps.table.is_current(row.slot, row.generation) {
                self.finish_failed(kv, self.steps.table.request[row.slot as usize], why);
                ended += 1;
            }
        }
        self.retract(kv, &record);
        self.recycle(record);
        ended
    }

    /// Ends requests past their deadline.
    pub(crate) fn expire(&mut self, kv: &mut KvAllocator) {
        while let Some(id) = self.queue.expired(self.now_ns) {
            self.finish(kv, id, FinishReason::Timeout);
        }
    }

    /// Ends the requests of a frontend that died. O(all), once a death.
    pub(crate) fn abort_frontend(&mut self, kv: &mut KvAllocator, below: RequestKey) {
        for id in self.requests.ids() {
            let key = self.requests.get(id).key;
            if key.frontend == below.frontend && key.request < below.request {
                self.finish(kv, id, FinishReason::Abort);
            }
        }
    }

    /// Ends a request and tells the detokenizer.
    pub(crate) fn finish(&mut self, kv: &mut KvAllocator, id: RequestId, reason: FinishReason) {
        self.outbox.row(OutRow { finish: Some(reason), ..self.out_row(id) }, &[]);
        self.end(kv, id, reason);
    }

    /// Ends a request with an error, and tells its client why.
    pub(crate) fn finish_failed(&mut self, kv: &mut KvAllocator, id: RequestId, why: &str) {
        self.tell(self.requests.get(id).key, why.into());
        self.finish(kv, id, FinishReason::Error);
    }

    /// Sends a request's client a text. One that cannot be encoded is not sent.
    pub(crate) fn tell(&mut self, key: RequestKey, text: String) {
        let _ = self.outbox.beside(&Message::Notice(Notice { key, text }));
    }

    /// Ends a request whose end the detokenizer knows, or learns from the caller.
    pub(crate) fn end(&mut self, kv: &mut KvAllocator, id: RequestId, reason: FinishReason) {
        let request = self.requests.get(id);
        let known = match request.slot {
            Some(slot) => self.steps.table.progress[slot as usize].known,
            None => request.tokens.len() as u32,
        };
        self.distributions.ended(request, known - request.prompt_length, reason, self.now_ns);
        if let Some(slot) = request.slot {
            // After an error it is not known what the cache holds.
            let sound = reason != FinishReason::Error;
            if sound {
                self.steps.remember(kv, slot, request.salt);
            }
            self.steps.vacate(kv, slot);
            self.features.drafts.close(slot, sound);
        }
        let Some(request) = self.requests.remove(id) else { return };
        self.features.leave(id);
        self.queue.leave(id, &request);
        self.counters.finished(reason);
    }

    /// Sends a running sequence back to the queue. What is computed and committed stays cached while there is room;
    /// tokens that steps in flight sample for it are dropped and will be sampled again, as they are a function of
    /// the tokens before them and of their position.
    pub(crate) fn preempt(&mut self, kv: &mut KvAllocator, slot: u32) {
        let salt = self.requests.get(self.steps.table.request[slot as usize]).salt;
        self.steps.remember(kv, slot, salt);
        self.requeue(kv, slot);
    }

    /// The same, with nothing kept of what it computed.
    pub(super) fn requeue(&mut self, kv: &mut KvAllocator, slot: u32) {
        let id = self.steps.table.request[slot as usize];
        let tokens = self.steps.vacate(kv, slot);
        self.features.drafts.close(slot, false);
        self.features.pooling.begin_again(id);
        self.queue.requeue(self.requests.requeue(id, tokens));
        self.counters.preemptions += 1;
    }

    /// A step has left those in flight: the timeline learns from when on the device has worked on the next one.
    pub(crate) fn recycle(&mut self, record: StepRecord) {
        let oldest_ns = Steps::recycle(&mut self.steps, record);
        self.timeline.set_in_flight_since(oldest_ns);
    }
}
