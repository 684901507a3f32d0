//! How requests end.

use super::super::expected::Expected;
use super::super::model::prompt;
use super::super::outcome::Outcome;
use super::super::random::{Event, happen};
use super::super::setup::{Setup, roomy};
use super::super::world::World;
use super::{finished, steps};
use pyengine_messages::{FinishReason, Message, RequestKey, Submit};

#[test]
fn predictable_ends_are_not_overshot() {
    let mut world = World::new(&Setup { depth: 2, ..roomy() });
    world.submit(&prompt(0, 5), 0, |submit| {
        submit.max_tokens = 3;
        submit.stop_token_ids.clear();
    });
    world.drain();
    assert_eq!((0..5).map(|_| world.plan()).collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
    world.finish();
    assert_eq!(world.stat("finished_length"), 1);
}

#[test]
fn a_queue_that_is_full_says_so_at_once() {
    // One will run, two may wait.
    let mut world = World::new(&Setup { max_waiting: 2, max_sequences: 1, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 5), 0, |_| {})).collect();
    world.drain();
    world.read();
    assert_eq!(world.streams[&keys[3]].finish, Some(FinishReason::Overloaded));
    assert_eq!(world.stat("waiting"), 3);
    world.finish();
}

#[test]
fn deadlines_end_what_waits_and_what_runs() {
    let mut world = World::new(&Setup { max_sequences: 1, depth: 1, ..roomy() });
    let keys = [0, 1].map(|family| {
        world.submit(&prompt(family, 5), 0, |submit| {
            submit.max_tokens = 100;
            submit.deadline_ns = 50;
            submit.stop_token_ids.clear();
        })
    });
    (0..3).for_each(|_| happen(&mut world, &Event::Step));
    world.now_ns = 50;
    world.cut.extend(keys.map(|key| (key, FinishReason::Timeout)));
    world.finish();
    assert_eq!(world.stat("finished_timeout"), 2);
    assert!(!world.streams[&keys[0]].tokens.is_empty() && world.streams[&keys[1]].tokens.is_empty());
}

#[test]
fn the_requests_of_a_dead_frontend_end_and_those_of_its_successor_do_not() {
    let mut world = World::new(&Setup { max_sequences: 1, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 5), 0, |_| {})).collect();
    happen(&mut world, &Event::Step);
    world.post(&Message::AbortFrontend(RequestKey { frontend: 1, request: u64::MAX }));
    world.post(&Message::AbortFrontend(keys[2]));
    world.cut.extend([(keys[0], FinishReason::Abort), (keys[1], FinishReason::Abort)]);
    world.finish();
    assert_eq!(world.stat("finished_abort"), 2);
}

#[test]
fn what_was_generated_before_a_restart_counts() {
    let mut world = World::new(&roomy());
    let body = prompt(0, 5);
    let whole = Expected::new(world_submit(&mut World::new(&roomy()), &body), &body, 0, 200);
    let stop = whole.tokens[7];
    let cases = [(8, 8, vec![], 8), (8, 3, vec![], 8), (8, 3, vec![stop], 3), (8, 1, vec![stop], 3)];
    for (max_tokens, resumed, stop_token_ids, length) in cases {
        let key = world.submit(&body, resumed, |submit| {
            submit.max_tokens = max_tokens;
            submit.stop_token_ids = stop_token_ids;
            submit.sampling = whole.submit.sampling;
        });
        steps(&mut world, 30, finished(key));
        assert_eq!(world.streams[&key].tokens.len(), length);
    }
    world.finish();
}

fn world_submit(world: &mut World, body: &[u32]) -> Submit {
    let key = world.submit(body, 0, |_| {});
    world.expected[&key].submit.clone()
}

#[test]
fn a_failed_step_ends_its_requests_and_no_others() {
    let mut world = World::new(&Setup { depth: 2, max_sequences: 2, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 6), 0, |_| {})).collect();
    world.drain();
    assert_eq!((world.plan(), world.plan()), (2, 2));
    world.device.results.pop_front();
    assert_eq!(world.planner.fail_step(&mut world.kv, "the device failed").unwrap(), 2);
    world.cut.extend(keys[..2].iter().map(|key| (*key, FinishReason::Error)));
    world.finish();
    assert_eq!(world.stat("finished_error"), 2);
}

#[test]
fn abort_all_leaves_nothing() {
    let mut world = World::new(&Setup { depth: 2, max_sequences: 2, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 6), 0, |_| {})).collect();
    world.drain();
    world.plan();
    assert_eq!(world.planner.abort_all(&mut world.kv).unwrap(), 4);
    world.cut.extend(keys.iter().map(|key| (*key, FinishReason::Error)));
    assert!(world.commit_results(&Outcome::default(), 0, &[]).is_err());
    world.verify();
}

#[test]
fn a_sampler_that_finds_no_token_ends_the_request() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let key = world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    world.plan();
    world.device.results[0].tokens[0] = -1;
    world.cut.insert(key, FinishReason::Error);
    world.commit();
    // The step's KV may be as broken as its logits: no request gets it from the cache.
    world.submit(&prompt(0, 6), 0, |_| {});
    world.finish();
    assert_eq!(world.stat("finished_error"), 1);
    assert_eq!(world.stat("prefix_hits"), 0);
}
