//! The queue in which requests wait before they run, by class, tenant and arrival.

pub(super) mod policy;
pub(super) mod requests;

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::step::sequence_table::{RequestId, TenantId};
use policy::{Tenants, Ticket, WaitingQueue};
use requests::Request;

/// The requests that wait, their tenants' shares, and every request's deadline.
pub(super) struct Queue {
    waiting: WaitingQueue,
    tenants: Tenants,
    deadlines: BTreeSet<(u64, RequestId)>,
    /// Requests that a feature prepares before they enter the queue.
    preparing: FxHashSet<RequestId>,
    /// The head of the queue, and the blocks and sequences there were when it did not fit.
    stuck: Option<(RequestId, usize, usize)>,
    /// Orders submissions and admissions.
    serial: u64,
    /// Tokens that every running sequence is expected to grow by.
    horizon: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: WaitingQueue::default(),
            tenants: Tenants::default(),
            deadlines: BTreeSet::new(),
            preparing: FxHashSet::default(),
            stuck: None,
            serial: 0,
            horizon: policy::GROWTH_TOKENS,
        }
    }
}

impl Queue {
    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many requests are being prepared.
    pub fn preparing(&self) -> usize {
        self.preparing.len()
    }

    /// Takes in a request of a tenant, by the tenant's name in messages; returns the tenant's name in the planner. The
    /// request then [enters](Self::enter), or is [held](Self::hold).
    pub fn accept(&mut self, id: RequestId, tenant: u64, deadline_ns: u64) -> TenantId {
        if deadline_ns > 0 {
            self.deadlines.insert((deadline_ns, id));
        }
        self.tenants.enter(tenant)
    }

    /// A request waits to be prepared.
    pub fn hold(&mut self, id: RequestId) {
        self.preparing.insert(id);
    }

    /// A request waits to run.
    pub fn enter(&mut self, ticket: &Ticket) {
        self.preparing.remove(&ticket.id);
        self.waiting.push(ticket, &mut self.tenants);
    }

    /// The request that is to run next.
    pub fn head(&mut self) -> Option<RequestId> {
        self.waiting.head(&self.tenants)
    }

    /// Whether the head did not fit, and nothing has changed for it: blocks that running sequences take were expected to be
    /// taken, and only freed blocks make another try worth it.
    pub fn is_stuck(&self, head: RequestId, available: usize, running: usize) -> bool {
        self.stuck.is_some_and(|(id, free, before)| id == head && before == running && available <= free)
    }

    /// The head does not fit.
    pub fn stick(&mut self, head: RequestId, available: usize, running: usize) {
        self.stuck = Some((head, available, running));
    }

    /// A request runs from now on. A tenant is charged for the tokens that it did not find in the cache, `charged`, the
    /// first time.
    pub fn admit(&mut self, ticket: &Ticket, charged: Option<u32>) {
        self.waiting.remove(ticket);
        if let Some(tokens) = charged {
            self.tenants.admit(ticket.tenant, tokens);
        }
    }

    /// Tokens that every running sequence is expected to grow by.
    pub fn horizon(&self) -> u32 {
        self.horizon
    }

    /// Something has changed for the head of the queue: it is tried again.
    pub fn retry(&mut self) {
        self.stuck = None;
    }

    /// Puts a preempted request back into the queue.
    pub fn requeue(&mut self, ticket: &Ticket) {
        self.waiting.push(ticket, &mut self.tenants);
        self.retry();
    }

    /// A request has ended, wherever it was.
    pub fn leave(&mut self, id: RequestId, request: &Request) {
        self.waiting.remove(&request.ticket);
        self.preparing.remove(&id);
        self.deadlines.remove(&(request.deadline_ns, id));
        self.tenants.leave(request.ticket.tenant);
        self.retry();
    }

    /// A request whose deadline has passed.
    pub fn expired(&self, now_ns: u64) -> Option<RequestId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now_ns).map(|(_, id)| *id)
    }

    /// Charges a tenant for tokens that it was served.
    pub fn charge(&mut self, tenant: TenantId, tokens: u64) {
        self.tenants.charge(tenant, tokens);
    }

    /// The next number in the order of submissions and admissions.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// How far admission looks ahead, in tokens.
    #[cfg(test)]
    pub fn set_horizon(&mut self, tokens: u32) {
        self.horizon = tokens;
    }
}
