//! Requests that a feature prepares before they enter the queue, as a grammar has to be compiled.

use super::Lifecycle;
use crate::features::row_feature::Start;
use crate::step::Steps;
use crate::step::sequence_table::RequestId;
use pyengine_kv_allocator::KvAllocator;

impl Lifecycle {
    /// Begins to prepare a request that was just submitted; it enters the queue once that is done.
    pub(super) fn prepare(&mut self, kv: &mut KvAllocator, steps: &mut Steps, id: RequestId) {
        self.queue.hold(id);
        if self.features.prepare(id) {
            self.start(kv, steps, id);
        }
    }

    /// Takes the requests that were prepared meanwhile.
    pub(super) fn collect_prepared(&mut self, kv: &mut KvAllocator, steps: &mut Steps) {
        if self.queue.preparing() == 0 {
            return;
        }
        let mut ids = Vec::new();
        self.features.prepared(&mut ids);
        ids.into_iter().for_each(|id| self.start(kv, steps, id));
    }

    /// A request is prepared: it enters the queue, or ends at once.
    fn start(&mut self, kv: &mut KvAllocator, steps: &mut Steps, id: RequestId) {
        let request = self.requests.get(id);
        let key = request.key;
        let generated = &request.tokens[request.prompt_length as usize..];
        let left = request.limit.saturating_sub(request.tokens.len() as u32);
        let Start { notices, end } = self.features.start(id, generated, left);
        self.queue.enter(&request.ticket);
        notices.into_iter().for_each(|text| self.tell(key, text));
        if let Some(reason) = end {
            self.finish(kv, steps, id, reason);
        }
    }
}
