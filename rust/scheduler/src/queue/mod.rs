//! Requests before they run: the messages that bring them, the queue in which they wait, and their admission.
//!
//! ```text
//!   mailbox ──inbox──► submit ──► (grammar compiles) ──► Queue ──admission──► step
//!                         └─► refused                      ▲ preempted
//! ```

mod admission;
mod compiling;
mod inbox;
pub(super) mod policy;
pub(super) mod requests;
pub(super) mod submit;

use std::collections::BTreeSet;

use super::step::sequence_table::{RequestId, TenantId};
use policy::{Tenants, Ticket, WaitingQueue};
use requests::Request;

/// The requests that wait, their tenants' shares, and every request's deadline.
pub(super) struct Queue {
    waiting: WaitingQueue,
    tenants: Tenants,
    deadlines: BTreeSet<(u64, RequestId)>,
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

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// How far admission looks ahead, in tokens.
    #[cfg(test)]
    pub fn set_horizon(&mut self, tokens: u32) {
        self.horizon = tokens;
    }
}
