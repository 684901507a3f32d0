//! What happens where memory is short.

use super::super::model::prompt;
use super::super::setup::{Setup, roomy};
use super::super::world::World;
use super::steps;

#[test]
fn one_sequence_at_a_time_is_enough() {
    for depth in 0..3 {
        for prefix_cache in [false, true] {
            let mut world = World::new(&Setup { num_blocks: 5, depth, prefix_cache, ..roomy() });
            for family in 0..12 {
                // 12 + 9 tokens take 5 blocks of 4 and one token that needs no KV: the whole cache.
                world.submit(&prompt(family, 12), 0, |submit| {
                    submit.max_tokens = 9;
                    submit.stop_token_ids.clear();
                });
            }
            world.finish();
            assert_eq!(world.stat("finished_length"), 12);
        }
    }
}

#[test]
fn a_preempted_request_goes_on_where_it_was() {
    let mut world = World::new(&Setup { num_blocks: 40, max_context: 150, ..roomy() });
    for family in 0..4 {
        world.submit(&prompt(family, 4), 0, |submit| {
            submit.max_tokens = 100;
            submit.stop_token_ids.clear();
        });
    }
    world.finish();
    let preemptions = world.stat("preemptions");
    assert!(preemptions > 0);
    // More than the one full block of each prompt was still there: what it had generated is cached too.
    assert!(world.stat("prefix_hits") > 4 * preemptions);
    assert_eq!(world.stat("finished_length"), 4);
    assert_eq!(world.stat("completion_tokens"), 400);
}

#[test]
fn the_worst_class_is_preempted_first() {
    let mut world = World::new(&Setup { num_blocks: 60, max_sequences: 3, ..roomy() });
    let classes = [1, 0, 0];
    let keys = classes.map(|class| {
        world.submit(&prompt(class as u64, 4), 0, |submit| {
            submit.max_tokens = 100;
            submit.priority = class;
            submit.stop_token_ids.clear();
        })
    });
    steps(&mut world, 400, |world| world.stat("preemptions") > 0);
    let id = world.planner.lifecycle.requests.find(keys[0]).unwrap();
    assert_eq!(world.planner.lifecycle.requests.get(id).slot, None);
    assert!(world.planner.lifecycle.requests.get(id).ticket.resumed);
    world.finish();
}

#[test]
fn a_full_cache_does_not_thrash() {
    let mut world = World::new(&Setup { num_blocks: 64, max_sequences: 16, max_rows: 16, ..roomy() });
    for family in 0..40 {
        world.submit(&prompt(family, 16), 0, |submit| {
            submit.max_tokens = 60;
            submit.stop_token_ids.clear();
        });
    }
    world.finish();
    // A sequence that is let in grows by 60 tokens at most, for which admission keeps blocks.
    assert_eq!(world.stat("preemptions"), 0);
}
