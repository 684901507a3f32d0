//! Admission: the head of the queue gets a place in the sequence table and the blocks of all its known tokens, in the
//! group of layers that see all of them; windows take theirs as they come to them.
//!
//! Only the head is tried: it fits if its blocks can be had beside what the running sequences are expected to grow by
//! ([`policy::admits`]). What the prefix tree knows of its tokens it takes from there. A head that does not fit is not
//! tried again until something has changed for it.
//!
//! O(running) a step in which a request is tried, and O(known tokens) a request.

use super::policy;
use crate::planner::Planner;
use crate::step::plan::Room;
use crate::step::sequence_table::RequestId;
use crate::step::{Entry, Placement};
use pyengine_kv_allocator::KvAllocator;
use pyengine_telemetry::{Span, Stage, Track};

impl Planner {
    /// Admits from the queue while there is room in the step and for its head.
    pub(crate) fn admit(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        let mut growth = None;
        while self.steps.running().len() < self.concurrency
            && room.prefill > 0
            && room.pages > 0
            && !room.closed
        {
            let queue = &mut self.queue;
            let Some(id) = queue.waiting.head(&queue.tenants) else { return };
            // Blocks that running sequences take were expected to be taken: only freed blocks make another try worth it.
            let running = self.steps.running().len();
            if queue
                .stuck
                .is_some_and(|(head, free, before)| head == id && before == running && kv.available() <= free)
            {
                return;
            }
            let horizon = queue.horizon;
            let expected = growth.unwrap_or_else(|| self.steps.expected_growth(kv, horizon));
            self.timeline.end_span(Stage::Admit);
            self.requests.settle_rotation(id, self.config.short_context);
            let request = self.requests.get(id);
            let Some(placement) = self.steps.place(kv, request, expected, horizon, &mut self.timeline) else {
                self.queue.stuck = Some((id, kv.available(), running));
                return;
            };
            growth = Some(expected + self.steps.growth(kv, placement.slot, horizon));
            self.enter(id, placement);
            self.grant_prefill(kv, placement.slot, room);
        }
    }

    /// Makes a request that has its place a running sequence.
    fn enter(&mut self, id: RequestId, Placement { slot, computed }: Placement) {
        let queue = &mut self.queue;
        let serial = queue.next_serial();
        let request = self.requests.get_mut(id);
        queue.waiting.remove(&request.ticket);
        request.slot = Some(slot);
        let known = request.tokens.len() as u32;
        let first = request.cached_tokens.is_none();
        let cached = *request.cached_tokens.get_or_insert(computed.min(request.prompt_length));
        let mut tokens = std::mem::take(&mut request.tokens);
        tokens.reserve((request.limit - known) as usize);
        self.features.drafts.open(slot, id, &tokens, request.prompt_length as usize);
        self.steps.enter(
            slot,
            Entry {
                request: id,
                tenant: request.ticket.tenant,
                sampling: request.sampling,
                samples: request.samples,
                order: policy::running_order(request.ticket.class, serial),
                tokens,
                borrows: computed > 0,
                rotation: if request.long { self.config.short_context as u32 } else { 0 },
            },
        );
        self.counters.prefix_queries += u64::from(known);
        self.counters.prefix_hits += u64::from(computed);
        // Tokens computed again after a preemption are not charged to the tenant.
        if first {
            let now_ns = self.now_ns;
            let start = request.ticket.arrival_ns.min(now_ns);
            self.distributions.admitted(now_ns - start);
            request.queued_us = u32::try_from((now_ns - start) / 1000).unwrap_or(u32::MAX);
            let (stage, track, step) = (Stage::QueueWait, Track::Request, request.key.request);
            self.timeline.record(Span { stage, track, start, end: now_ns, step });
            queue.tenants.admit(request.ticket.tenant, known - computed);
            self.counters.prompt_tokens += u64::from(request.prompt_length);
            self.counters.cached_tokens += u64::from(cached);
        }
    }
}
