//! How prompts share steps, and what is not computed again.

use super::super::model::prompt;
use super::super::setup::{Setup, roomy};
use super::super::world::World;
use super::{finished, steps};
use pyengine_messages::FinishReason;

#[test]
fn a_long_prompt_does_not_hold_up_decodes() {
    let mut world = World::new(&Setup { max_tokens: 8, depth: 0, ..roomy() });
    let decode = world.submit(&prompt(0, 4), 0, |submit| {
        submit.max_tokens = 12;
        submit.stop_token_ids.clear();
    });
    steps(&mut world, 3, |world| world.streams.get(&decode).is_some_and(|stream| !stream.tokens.is_empty()));
    let long = world.submit(&prompt(1, 100), 0, |_| {});
    steps(&mut world, 13, finished(decode));
    assert!(world.streams[&long].tokens.is_empty());
    world.finish();
}

#[test]
fn chunks_are_capped_and_the_rest_of_the_budget_is_shared() {
    let mut world = World::new(&Setup { max_tokens: 20, prefill_chunk: 8, ..roomy() });
    for family in 0..3 {
        world.submit(&prompt(family, 30), 0, |_| {});
    }
    world.drain();
    world.plan();
    let counts: Vec<_> = world.planner.steps.prefills().iter().map(|grant| grant.count).collect();
    assert_eq!(counts, [8, 8, 4]);
    world.finish();
}

#[test]
fn prompts_beside_decodes_have_a_share_that_grows_with_the_requests() {
    let setup =
        Setup { max_tokens: 100, max_sequences: 3, max_rows: 3, depth: 0, num_blocks: 300, ..roomy() };
    let mut world =
        World::new(&Setup { prefill_beside_decodes: 7, max_pages: 300, max_context: 300, ..setup });
    let ask = |world: &mut World, family, length, max_tokens| {
        world.submit(&prompt(family, length), 0, |submit| {
            submit.max_tokens = max_tokens;
            submit.stop_token_ids.clear();
        })
    };
    let prefilled = |world: &mut World| {
        world.drain();
        world.plan();
        let counts: Vec<_> = world.planner.steps.prefills().iter().map(|grant| grant.count).collect();
        while world.commit() {}
        counts
    };
    // Nothing decodes: the whole step.
    ask(&mut world, 0, 40, 60);
    assert_eq!(prefilled(&mut world), [40]);
    // Beside one of two, what is always granted; of three, three for each, and for no more that cannot run yet.
    ask(&mut world, 1, 14, 1);
    assert_eq!(prefilled(&mut world), [7]);
    for family in 2..6 {
        ask(&mut world, family, 20, 1);
    }
    assert_eq!(prefilled(&mut world), [7, 2]);
    assert_eq!(prefilled(&mut world), [9]);
    world.finish();
}

#[test]
fn a_prefix_is_computed_once_per_salt() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let body = prompt(0, 33);
    for (salt, hits) in [(0, 0), (0, 32), (1, 32), (1, 64)] {
        let key = world.submit(&body, 0, |submit| submit.cache_salt = salt);
        steps(&mut world, 50, finished(key));
        assert_eq!(world.stat("prefix_hits"), hits);
    }
    world.finish();
}

#[test]
fn the_whole_prompt_is_never_taken_from_the_cache() {
    let mut world = World::new(&roomy());
    for _ in 0..2 {
        let key = world.submit(&prompt(0, 32), 0, |_| {});
        steps(&mut world, 50, finished(key));
    }
    assert_eq!(world.stat("prefix_hits"), 28);
    world.finish();
}

#[test]
fn prompts_that_cannot_fit_are_errors_and_answers_that_cannot_are_cut() {
    let mut world = World::new(&Setup { num_blocks: 5, max_context: 19, ..roomy() });
    let keys = [19, 20, 18]
        .map(|length| world.submit(&prompt(0, length), 0, |submit| submit.stop_token_ids.clear()));
    world.finish();
    let ends = keys.map(|key| (world.streams[&key].finish.unwrap(), world.streams[&key].tokens.len()));
    assert_eq!(ends, [(FinishReason::Length, 0), (FinishReason::Error, 0), (FinishReason::Length, 1)]);
}
