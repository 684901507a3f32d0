//! What the policy promises, a queue each.

use super::tenants::MAX_IDLE_TENANTS;
use super::*;
use crate::step::sequence_table::RequestId;

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
    assert!((10..=14).contains(&turn), "no request is passed over by one that came 10 seconds later: {turn}");
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
    let tickets: Vec<_> = (0..40).map(|at| desk.wait(at % 3, u64::from(at as u32 % 5), at as u64)).collect();
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
    let mut running = [running_order(0, 7), running_order(1, 2), running_order(0, 3), running_order(1, 5)];
    running.sort_unstable();
    assert_eq!(running.last(), Some(&(1, 5)));
    assert_eq!(running.first(), Some(&(0, 3)));
}
