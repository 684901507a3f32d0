//! Admission: the head of the queue gets a place in the sequence table and the blocks of all its known tokens, in the
//! group of layers that see all of them; windows take theirs as they come to them.
//!
//! Only the head is tried: it fits if its blocks can be had beside what the running sequences are expected to grow by
//! ([`policy::admits`]). What the prefix tree knows of its tokens it takes from there. A head that does not fit is not
//! tried again until something has changed for it.
//!
//! O(running) a step in which a request is tried, and O(known tokens) a request.

use super::Steps;
use super::placement::{Entry, Placement};
use super::room::Room;
use crate::lifecycle::Lifecycle;
use crate::queue::policy;
use crate::step::sequence_table::RequestId;
use pyengine_kv_allocator::KvAllocator;
use pyengine_telemetry::{Span, Stage, Track};

impl Steps {
    /// Admits from the queue while there is room in the step and for its head.
    pub(super) fn admit(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, room: &mut Room) {
        let mut growth = None;
        while self.running.len() < self.concurrency && room.prefill > 0 && room.pages > 0 && !room.closed {
            let Some(id) = lifecycle.queue.head() else { return };
            let running = self.running.len();
            if lifecycle.queue.is_stuck(id, kv.available(), running) {
                return;
            }
            let horizon = lifecycle.queue.horizon();
            let expected = growth.unwrap_or_else(|| self.expected_growth(kv, horizon));
            lifecycle.timeline.end_span(Stage::Admit);
            lifecycle.requests.settle_rotation(id, self.config.short_context);
            let request = lifecycle.requests.get(id);
            let Some(placement) = self.place(kv, request, expected, horizon, &mut lifecycle.timeline) else {
                lifecycle.queue.stick(id, kv.available(), running);
                return;
            };
            growth = Some(expected + self.growth(kv, placement.slot, horizon));
            self.admit_to(lifecycle, id, placement);
            self.grant_prefill(kv, lifecycle, placement.slot, room);
        }
    }

    /// Makes a request that has its place a running sequence.
    fn admit_to(
        &mut self,
        lifecycle: &mut Lifecycle,
        id: RequestId,
        Placement { slot, computed }: Placement,
    ) {
        let now_ns = lifecycle.now_ns;
        let (tokens, waited_ns) = lifecycle.requests.admit(id, slot, computed, now_ns);
        let (request, known) = (lifecycle.requests.get(id), tokens.len() as u32);
        // Tokens computed again after a preemption are not charged to the tenant.
        lifecycle.queue.admit(&request.ticket, waited_ns.map(|_| known - computed));
        let entry = Entry {
            request: id,
            prompt_length: request.prompt_length,
            tenant: request.ticket.tenant,
            sampling: request.sampling,
            samples: request.samples,
            order: policy::running_order(request.ticket.class, lifecycle.queue.next_serial()),
            tokens,
            borrows: computed > 0,
            rotation: if request.long { self.config.short_context as u32 } else { 0 },
            prediction: lifecycle.features.prediction(id),
        };
        self.enter(slot, entry);
        let counters = &mut lifecycle.counters;
        counters.prefix_queries += u64::from(known);
        counters.prefix_hits += u64::from(computed);
        if let Some(waited_ns) = waited_ns {
            lifecycle.distributions.admitted(waited_ns);
            let (stage, track, step) = (Stage::QueueWait, Track::Request, request.key.number());
            let start = now_ns - waited_ns;
            lifecycle.timeline.record(Span { stage, track, start, end: now_ns, step });
            counters.prompt_tokens += u64::from(request.prompt_length);
            counters.cached_tokens += u64::from(request.counts.cached_tokens);
        }
    }
}
