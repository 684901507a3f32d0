//! What comes in and what goes out.

use std::collections::VecDeque;

use super::super::model::prompt;
use super::super::setup::roomy;
use super::super::world::World;
use pyengine_base::error::Error;

#[test]
fn a_full_ring_stops_planning_and_loses_nothing() {
    let mut world = World::new(&roomy());
    world.ring.lock().unwrap().1 = 0;
    world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    assert_eq!((world.plan(), world.stat("outbox")), (0, 1));
    assert!(world.planner.has_work());
    world.ring.lock().unwrap().1 = 1;
    assert_eq!(world.plan(), 1);
    world.commit();
    assert_eq!((world.plan(), world.stat("outbox")), (0, 1));
    world.finish();
}

#[test]
fn what_is_not_for_the_planner_comes_back() {
    let mut world = World::new(&roomy());
    world.submit(&prompt(0, 6), 0, |_| {});
    let again = world.inbox[0].clone();
    let mut foreign = vec![again.clone(), b"\x92\xa5other\x01".to_vec(), b"garbage".to_vec()];
    let mut messages: VecDeque<_> = std::iter::once(again).chain(foreign.iter().cloned()).collect();
    let receive = |message: &mut Vec<u8>| {
        let next = messages.pop_front();
        Ok(next.is_some_and(|bytes| {
            *message = bytes;
            true
        }))
    };
    let others = world.planner.drain(&mut world.kv, receive, 1).unwrap();
    assert_eq!(others.len(), 3);
    assert!(foreign.drain(..).eq(others));
}

#[test]
fn a_mailbox_that_closes_is_reported_after_what_it_held() {
    let mut world = World::new(&roomy());
    let mut messages = VecDeque::from([b"\x92\xa5other\x01".to_vec()]);
    let mut receive = |message: &mut Vec<u8>| match messages.pop_front() {
        Some(bytes) => {
            *message = bytes;
            Ok(true)
        }
        None => Err(Error::MailboxClosed),
    };
    assert_eq!(world.planner.drain(&mut world.kv, &mut receive, 1).unwrap().len(), 1);
    assert_eq!(world.planner.drain(&mut world.kv, &mut receive, 1), Err(Error::MailboxClosed));
}
