//! The requests that wait, by class, tenant and arrival.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::AGING_NS;
use super::tenants::Tenants;
use crate::step::sequence_table::{RequestId, TenantId};

/// A waiting request, as the queue knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The request.
    pub id: RequestId,
    /// Its priority; lower is better.
    pub class: i32,
    /// The tenant that is charged.
    pub tenant: TenantId,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Breaks ties of arrival: the order of submission.
    pub serial: u64,
    /// It ran already and was preempted.
    pub resumed: bool,
}

impl Ticket {
    fn entry(&self) -> Entry {
        (self.arrival_ns, self.serial, self.id)
    }
}

type Entry = (u64, u64, RequestId);

#[derive(Default)]
struct TenantQueue {
    entries: BTreeSet<Entry>,
    // The tenant's virtual time when its queue was put into `turns`; it may have grown since.
    turn: u64,
}

#[derive(Default)]
pub(super) struct Class {
    all: BTreeSet<Entry>,
    resumed: BTreeSet<Entry>,
    tenant_queues: FxHashMap<TenantId, TenantQueue>,
    turns: BTreeSet<(u64, TenantId)>,
}

impl Class {
    /// The next request of this class. Virtual times only grow, so the least is found by putting back every
    /// tenant queue whose time has moved on.
    fn head(&mut self, tenants: &Tenants) -> Option<RequestId> {
        if let Some(entry) = self.resumed.first() {
            return Some(entry.2);
        }
        while let Some(&(turn, tenant)) = self.turns.first() {
            let served = tenants.served(tenant);
            let queue = self.tenant_queues.get_mut(&tenant)?;
            if served == turn {
                let (chosen, oldest) = (queue.entries.first()?, self.all.first()?);
                let overdue = oldest.0.saturating_add(AGING_NS) < chosen.0;
                return Some(if overdue { oldest.2 } else { chosen.2 });
            }
            queue.turn = served;
            self.turns.remove(&(turn, tenant));
            self.turns.insert((served, tenant));
        }
        None
    }
}

/// The requests that wait.
#[derive(Default)]
pub struct WaitingQueue {
    pub(super) classes: BTreeMap<i32, Class>,
    len: usize,
}

impl WaitingQueue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts a request into the queue.
    pub fn push(&mut self, ticket: &Ticket, tenants: &mut Tenants) {
        let class = self.classes.entry(ticket.class).or_default();
        class.all.insert(ticket.entry());
        self.len += 1;
        if ticket.resumed {
            class.resumed.insert(ticket.entry());
            return;
        }
        let queue = class.tenant_queues.entry(ticket.tenant).or_default();
        if queue.entries.is_empty() {
            queue.turn = tenants.begin(ticket.tenant);
            class.turns.insert((queue.turn, ticket.tenant));
        }
        queue.entries.insert(ticket.entry());
    }

    /// Takes a request out of the queue.
    pub fn remove(&mut self, ticket: &Ticket) {
        let Some(class) = self.classes.get_mut(&ticket.class) else { return };
        if !class.all.remove(&ticket.entry()) {
            return;
        }
        self.len -= 1;
        if !class.resumed.remove(&ticket.entry())
            && let Some(queue) = class.tenant_queues.get_mut(&ticket.tenant)
        {
            queue.entries.remove(&ticket.entry());
            if queue.entries.is_empty() {
                class.turns.remove(&(queue.turn, ticket.tenant));
                class.tenant_queues.remove(&ticket.tenant);
            }
        }
        if class.all.is_empty() {
            self.classes.remove(&ticket.class);
        }
    }

    /// The request whose turn it is; it stays in the queue.
    pub fn head(&mut self, tenants: &Tenants) -> Option<RequestId> {
        let due = |(level, class): &(&i32, &mut Class)| {
            let oldest = class.all.first().map_or(0, |entry| entry.0);
            (i128::from(**level) * i128::from(AGING_NS) + i128::from(oldest), **level)
        };
        self.classes.iter_mut().min_by_key(due).and_then(|(_, class)| class.head(tenants))
    }
}
