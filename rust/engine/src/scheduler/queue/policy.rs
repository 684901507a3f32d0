//! Selects the request that runs next: all policy of the scheduler is in this file, and nothing else.
//!
//! - **Classes with aging.** A lower priority number is a better class. A class's turn is judged by its oldest
//!   request's `arrival + class * AGING`: a better class passes a request over only as long as its own requests arrived
//!   less than `AGING` per class between them later. No request waits for ever.
//! - **Fair share.** Within a class tenants take turns by virtual time, the tokens they were served: the tenant
//!   with the least is next. A tenant that comes to wait starts at the time of the tenant served last, so idling
//!   saves up no credit; tokens that it was served beyond that time are remembered. The class's oldest request goes before
//!   any that arrived `AGING` after it, whichever tenant's turn it is.
//! - **Arrival.** Within a tenant the earliest goes first.
//! - **Preempted requests** come before all others of their class, in the order they arrived.
//! - **Admission looks ahead.** Beside what runs, a request is admitted only if, after its blocks, enough are left
//!   for every running sequence (it too) to grow by [`GROWTH_TOKENS`]. The head of the queue is not passed over when it does
//!   not fit, so large prompts get in.
//! - **Preemption.** When a sequence needs a block and there is none, the worst class's latest admitted goes
//!   back to the queue; the best class's earliest is never the victim of another, so work always gets done.
//! - **Budget.** Decodes are served first, one token each; prefills share the rest in running order, none more
//!   than `prefill_chunk`. Beside decodes prefills have `prefill_beside_decodes` together, or [`PREFILL_PER_REQUEST`] for
//!   each request that runs or could: where each token makes a step longer, as on a CPU, that bounds the gaps of the answers
//!   under way. A share that grows with the requests, whether they decode or wait, keeps a few that decode from holding up
//!   the prompts of many.
//!
//! Choosing the head costs O(classes + log waiting), joining and leaving O(log waiting): a step never scans
//! the queue.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::scheduler::step::sequence_table::{Progress, RequestId, TenantId};

/// Waiting this long is worth one priority class.
pub const AGING_NS: u64 = 10_000_000_000;

/// Admission keeps blocks for this many further tokens of every running sequence.
pub const GROWTH_TOKENS: u32 = 64;

/// Beside decodes a step may have so many prompt tokens for each request that runs or could.
pub const PREFILL_PER_REQUEST: usize = 3;

/// Idle tenants whose served tokens are remembered.
const MAX_IDLE_TENANTS: usize = 1024;

/// Tokens of one sequence's share of a step: what remains, within the budget and the cap (0 is none).
pub fn share(remaining: u32, budget: usize, prefill_chunk: usize) -> usize {
    let cap = if prefill_chunk == 0 { usize::MAX } else { prefill_chunk };
    (remaining as usize).min(budget).min(cap)
}

/// Most prompt tokens of a step that also decodes, where so many requests run, or could; `least` of 0 is no cap.
pub fn prefill_beside_decodes(requests: usize, least: usize) -> usize {
    if least == 0 { usize::MAX } else { least.max(PREFILL_PER_REQUEST * requests) }
}

/// Tokens that a sequence will have KV of after its next `horizon` ones (its last token needs none).
pub fn expected_tokens(progress: &Progress, horizon: u32) -> usize {
    (progress.total() + horizon).min(progress.limit - 1) as usize
}

/// Whether a request that takes `needed` of the `available` pages may join sequences that will want `growth`
/// more. One that would run alone needs only its own.
pub fn admits(needed: usize, available: usize, growth: usize, alone: bool) -> bool {
    needed + if alone { 0 } else { growth } <= available
}

/// Order in which running sequences get blocks and tokens; the last is the first victim.
pub fn running_order(class: i32, admission: u64) -> (i32, u64) {
    (class, admission)
}

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
struct Class {
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
    classes: BTreeMap<i32, Class>,
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

struct Tenant {
    key: u64,
    served: u64,
    requests: usize,
}

/// Tokens served to each tenant: the virtual time that fair share goes by.
#[derive(Default)]
pub struct Tenants {
    slots: Vec<Tenant>,
    free: Vec<TenantId>,
    by_key: FxHashMap<u64, TenantId>,
    idle: usize,
    // Virtual time of the tenant served last.
    clock: u64,
}

impl Tenants {
    /// The tenant of a new request.
    pub fn enter(&mut self, key: u64) -> TenantId {
        let id = *self.by_key.entry(key).or_insert_with(|| {
            let tenant = Tenant { key, served: 0, requests: 0 };
            self.idle += 1;
            if let Some(id) = self.free.pop() {
                self.slots[id as usize] = tenant;
                return id;
            }
            self.slots.push(tenant);
            self.slots.len() as TenantId - 1
        });
        let tenant = &mut self.slots[id as usize];
        self.idle -= usize::from(tenant.requests == 0);
        tenant.requests += 1;
        id
    }

    /// A request of the tenant has ended. Idle tenants are forgotten when their debt is paid or they are many.
    pub fn leave(&mut self, id: TenantId) {
        let tenant = &mut self.slots[id as usize];
        tenant.requests -= 1;
        if tenant.requests > 0 {
            return;
        }
        self.idle += 1;
        if self.idle == self.by_key.len() {
            *self = Self::default();
        } else if tenant.served <= self.clock {
            self.forget(id);
        } else if self.idle > MAX_IDLE_TENANTS {
            for id in 0..self.slots.len() as TenantId {
                let tenant = &self.slots[id as usize];
                if tenant.requests == 0 && self.by_key.get(&tenant.key) == Some(&id) {
                    self.forget(id);
                }
            }
        }
    }

    fn forget(&mut self, id: TenantId) {
        self.by_key.remove(&self.slots[id as usize].key);
        self.free.push(id);
        self.idle -= 1;
    }

    /// The tenant comes to wait: it has no credit from before. Returns its virtual time.
    fn begin(&mut self, id: TenantId) -> u64 {
        let tenant = &mut self.slots[id as usize];
        tenant.served = tenant.served.max(self.clock);
        tenant.served
    }

    /// The tenant's request was chosen; its `prompt` tokens are charged at once, so that it does not win every
    /// place that is free in this step.
    pub fn admit(&mut self, id: TenantId, prompt: u32) {
        let tenant = &mut self.slots[id as usize];
        self.clock = self.clock.max(tenant.served);
        tenant.served += u64::from(prompt);
    }

    /// The tenant was served `tokens` more.
    pub fn charge(&mut self, id: TenantId, tokens: u64) {
        self.slots[id as usize].served += tokens;
    }

    fn served(&self, id: TenantId) -> u64 {
        self.slots[id as usize].served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    struct Desk {
        queue: WaitingQueue,
        tenants: Tenants,
        serial: u64,
    }

    impl Desk {
        fn new() -> Self {
            Self { queue: WaitingQueue::default(), tenants: Tenants::default(), serial: 0 }
        }

        fn wait(&mut self, class: i32, tenant: u64, arrival_ns: u64) -> Ticket {
            let tenant = self.tenants.enter(tenant);
            self.serial += 1;
            let id = self.serial as RequestId;
            let ticket = Ticket { id, class, tenant, arrival_ns, serial: self.serial, resumed: false };
            self.queue.push(&ticket, &mut self.tenants);
            ticket
        }

        fn serve(&mut self, tickets: &[Ticket], prompt: u32) -> Option<RequestId> {
            let id = self.queue.head(&self.tenants)?;
            let ticket = tickets.iter().find(|ticket| ticket.id == id).unwrap();
            self.queue.remove(ticket);
            self.tenants.admit(ticket.tenant, prompt);
            Some(id)
        }

        fn serve_all(&mut self, tickets: &[Ticket], prompt: u32) -> Vec<RequestId> {
            std::iter::from_fn(|| self.serve(tickets, prompt)).collect()
        }
    }

    #[test]
    fn better_classes_go_first_and_arrival_decides_within_one() {
        let mut desk = Desk::new();
        let tickets = [desk.wait(1, 0, 0), desk.wait(0, 0, 2), desk.wait(0, 0, 1), desk.wait(-1, 0, 3)];
        assert_eq!(desk.serve_all(&tickets, 10), [4, 3, 2, 1]);
    }

    #[test]
    fn waiting_is_worth_a_class_after_a_while() {
        let mut desk = Desk::new();
        let late = AGING_NS + SECOND;
        let tickets = [desk.wait(1, 0, 0), desk.wait(0, 0, AGING_NS - SECOND), desk.wait(0, 0, late)];
        assert_eq!(desk.serve_all(&tickets, 10), [2, 1, 3]);
    }

    #[test]
    fn a_flood_of_a_better_class_starves_no_request() {
        let mut desk = Desk::new();
        let mut tickets = vec![desk.wait(3, 0, 0)];
        let mut served = Vec::new();
        for second in 0..60 {
            tickets.push(desk.wait(0, 0, second * SECOND));
            served.extend(desk.serve(&tickets, 10));
        }
        let turn = served.iter().position(|id| *id == 1).unwrap();
        assert!((30..=32).contains(&turn), "three classes are worth 30 seconds, not {turn}");
    }

    #[test]
    fn a_flood_of_new_tenants_starves_no_request() {
        let mut desk = Desk::new();
        let mut tickets = vec![desk.wait(0, 1, 0), desk.wait(0, 1, 0)];
        let mut served = Vec::new();
        for second in 0..60 {
            tickets.push(desk.wait(0, 100 + second, second * SECOND));
            served.extend(desk.serve(&tickets, 10));
        }
        let turn = served.iter().position(|id| *id == 2).unwrap();
        assert!(
            (10..=14).contains(&turn),
            "no request is passed over by one that came 10 seconds later: {turn}"
        );
    }

    #[test]
    fn tenants_take_turns_by_tokens() {
        let mut desk = Desk::new();
        let mut tickets: Vec<_> = (0..6).map(|at| desk.wait(0, 1, at)).collect();
        tickets.extend((6..8).map(|at| desk.wait(0, 2, at)));
        assert_eq!(desk.serve_all(&tickets, 10), [1, 7, 2, 8, 3, 4, 5, 6]);
    }

    #[test]
    fn decoded_tokens_count_too_and_idling_saves_no_credit() {
        let mut desk = Desk::new();
        let mut tickets: Vec<_> = (0..4).map(|at| desk.wait(0, 1, at)).collect();
        assert_eq!(desk.serve(&tickets, 10), Some(1));
        desk.tenants.charge(tickets[0].tenant, 1000);
        assert_eq!(desk.serve(&tickets, 10), Some(2));
        tickets.extend((4..8).map(|at| desk.wait(0, 2, at)));
        // Tenant 2 begins at 1010, where tenant 1 was served last; tenant 1 stands at 1020.
        assert_eq!(desk.serve_all(&tickets, 10), [5, 3, 6, 4, 7, 8]);
    }

    #[test]
    fn a_preempted_request_goes_before_its_class_but_not_before_a_better_one() {
        let mut desk = Desk::new();
        let mut tickets = vec![desk.wait(1, 0, 0), desk.wait(0, 0, 1)];
        let tenant = desk.tenants.enter(0);
        tickets.push(Ticket { id: 9, class: 1, tenant, arrival_ns: 5, serial: 9, resumed: true });
        desk.queue.push(&tickets[2], &mut desk.tenants);
        assert_eq!(desk.serve_all(&tickets, 10), [2, 9, 1]);
    }

    #[test]
    fn leaving_the_queue_leaves_nothing_behind() {
        let mut desk = Desk::new();
        let tickets: Vec<_> =
            (0..40).map(|at| desk.wait(at % 3, u64::from(at as u32 % 5), at as u64)).collect();
        for ticket in &tickets {
            desk.queue.remove(ticket);
            desk.queue.remove(ticket);
            desk.tenants.leave(ticket.tenant);
        }
        assert!(desk.queue.len() == 0 && desk.queue.classes.is_empty());
        assert!(desk.tenants.by_key.is_empty() && desk.tenants.slots.is_empty());
    }

    #[test]
    fn idle_tenants_are_remembered_in_debt_only_and_not_without_bound() {
        let mut tenants = Tenants::default();
        let busy = tenants.enter(0);
        let paid = tenants.enter(1);
        tenants.leave(paid);
        assert_eq!(tenants.by_key.len(), 1);
        for key in 2..10_000 {
            let id = tenants.enter(key);
            tenants.charge(id, 5);
            tenants.leave(id);
            assert!(tenants.by_key.len() <= MAX_IDLE_TENANTS + 1);
        }
        assert_eq!(tenants.served(busy), 0);
    }

    #[test]
    fn shares_respect_budget_and_cap() {
        assert_eq!(share(100, 64, 0), 64);
        assert_eq!(share(100, 64, 16), 16);
        assert_eq!(share(3, 64, 16), 3);
    }

    #[test]
    fn admission_keeps_room_to_grow() {
        let progress = Progress { known: 10, limit: 1000, ..Progress::default() };
        assert_eq!(expected_tokens(&progress, 64), 74);
        let ending = Progress { known: 10, limit: 17, ..Progress::default() };
        assert_eq!(expected_tokens(&ending, 64), 16);
        assert!(admits(4, 8, 4, false));
        assert!(!admits(5, 8, 4, false));
        assert!(admits(8, 8, 4, true));
        assert!(!admits(9, 8, 0, true));
    }

    #[test]
    fn the_victim_is_the_worst_class_then_the_latest() {
        let mut running =
            [running_order(0, 7), running_order(1, 2), running_order(0, 3), running_order(1, 5)];
        running.sort_unstable();
        assert_eq!(running.last(), Some(&(1, 5)));
        assert_eq!(running.first(), Some(&(0, 3)));
    }
}
