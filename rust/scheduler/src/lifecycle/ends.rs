//! `finish` and `preempt`: how a request leaves the running sequences, or the planner.
//!
//! Both cost O(blocks of the sequence + log running); neither waits for steps in flight, whose rows for the sequence
//! are void from then on. Its blocks are free at once: the device runs steps in order, so their next owner writes
//! them after the last step that knew the old one.

use super::Lifecycle;
use crate::features::grammars::Grammars;
use crate::step::Steps;
use crate::step::sequence_table::RequestId;
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, RequestKey, TokensRef};

impl Lifecycle {
    /// Ends requests past their deadline.
    pub fn expire(&mut self, kv: &mut KvAllocator, steps: &mut Steps) {
        while let Some(id) = self.queue.expired(self.now_ns) {
            self.finish(kv, steps, id, FinishReason::Timeout);
        }
    }

    /// Ends the requests of a frontend that died. O(all), once a death.
    pub(super) fn abort_frontend(&mut self, kv: &mut KvAllocator, steps: &mut Steps, below: RequestKey) {
        for id in self.requests.ids() {
            let key = self.requests.get(id).key;
            if key.frontend == below.frontend && key.request < below.request {
                self.finish(kv, steps, id, FinishReason::Abort);
            }
        }
    }

    /// Ends a request and tells the detokenizer.
    pub fn finish(&mut self, kv: &mut KvAllocator, steps: &mut Steps, id: RequestId, reason: FinishReason) {
        self.outbox.row(TokensRef { finish: Some(reason), ..self.requests.get(id).row(&[]) });
        self.end(kv, steps, id, reason);
    }

    /// Ends a request with an error, and tells its client why.
    pub fn finish_failed(&mut self, kv: &mut KvAllocator, steps: &mut Steps, id: RequestId, why: &str) {
        self.tell(self.requests.get(id).key, why.into());
        self.finish(kv, steps, id, FinishReason::Error);
    }

    /// Tells a request's client why a feature can go on with it no further, or that it `failed`.
    pub fn explain(&mut self, id: RequestId, failed: Option<&str>) {
        if let Some(text) = self.features.complaint(id).or_else(|| failed.map(str::to_owned)) {
            self.tell(self.requests.get(id).key, text);
        }
    }

    /// Ends a request whose end the detokenizer knows, or learns from the caller.
    pub fn end(&mut self, kv: &mut KvAllocator, steps: &mut Steps, id: RequestId, reason: FinishReason) {
        let constrained = self.features.get::<Grammars>().constrains(id);
        let request = self.requests.get(id);
        let tokens = match request.slot {
            Some(slot) => &steps.table().tokens[slot as usize],
            None => &request.tokens,
        };
        let generated = tokens.len() as u32 - request.prompt_length;
        self.distributions.ended(request, generated, reason, self.now_ns);
        self.recording.ended(request, tokens, constrained);
        if let Some(slot) = request.slot {
            // After an error it is not known what the cache holds.
            let sound = reason != FinishReason::Error;
            if sound {
                steps.remember(kv, slot, request.salt);
            }
            steps.vacate(kv, slot, sound);
        }
        let Some(request) = self.requests.remove(id) else { return };
        self.features.leave(id);
        self.queue.leave(id, &request);
        self.counters.finished(reason);
    }

    /// Sends a running sequence back to the queue. What is computed and committed stays cached while there is room;
    /// tokens that steps in flight sample for it are dropped and will be sampled again, as they are a function of
    /// the tokens before them and of their position.
    pub fn preempt(&mut self, kv: &mut KvAllocator, steps: &mut Steps, slot: u32) {
        let salt = self.requests.get(steps.table().request[slot as usize]).salt;
        steps.remember(kv, slot, salt);
        self.requeue(kv, steps, slot);
    }

    /// The same, but nothing that it computed is kept.
    pub fn requeue(&mut self, kv: &mut KvAllocator, steps: &mut Steps, slot: u32) {
        let id = steps.table().request[slot as usize];
        let tokens = steps.vacate(kv, slot, false);
        self.features.begin_again(id);
        self.queue.requeue(self.requests.requeue(id, tokens));
        self.counters.preemptions += 1;
    }
}
