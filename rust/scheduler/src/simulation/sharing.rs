//! Prompts that come together: what they share is computed once, and what goes wrong with one harms no other.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::model::{VOCABULARY, mix};
use super::random::{Event, happen, states};
use super::setup::{Setup, roomy};
use super::world::World;
use pyengine_kv_allocator::Group;
use pyengine_messages::{FinishReason, Message, RequestKey};

/// A prompt that begins like the others of its `family`, up to `shared` tokens.
#[derive(Debug, Clone)]
struct Prompt {
    family: u64,
    shared: usize,
    own: usize,
    salt: u64,
}

impl Prompt {
    fn tokens(&self, number: usize) -> Vec<u32> {
        let own = 100 + number as u64;
        let of = |at: usize| if at < self.shared { self.family } else { own };
        (0..self.shared + self.own).map(|at| (mix(of(at), at as u64) % VOCABULARY) as u32).collect()
    }
}

fn prompts() -> impl Strategy<Value = Vec<Prompt>> {
    let prompt = (0..2u64, 0..40usize, 1..20usize, 0..2u64).prop_map(|(family, shared, own, salt)| Prompt {
        family,
        shared,
        own,
        salt,
    });
    prop::collection::vec(prompt, 1..12)
}

/// The burst as it is explained: every block that may be shared is computed once, and the rest by each request.
fn once(burst: &[(u64, Vec<u32>)], block_size: usize) -> usize {
    let mut blocks = HashSet::new();
    let mut rest = 0;
    for (salt, tokens) in burst {
        let shared = (tokens.len() - 1) / block_size;
        blocks.extend((1..=shared).map(|count| (*salt, &tokens[..count * block_size])));
        rest += tokens.len() - shared * block_size;
    }
    blocks.len() * block_size + rest
}

/// Runs to the end; returns tokens computed, steps, and rows that left a block of a prompt unfinished.
fn computed(world: &mut World) -> (usize, usize, usize) {
    let (mut tokens, mut steps, mut ragged) = (0, 0, 0);
    while world.running() {
        world.drain();
        if world.plan() > 0 {
            steps += 1;
            let rows = &world.device.results.back().unwrap().rows;
            tokens += rows.iter().map(|row| row.written.len()).sum::<usize>();
            let unfinished = |end: usize| !end.is_multiple_of(world.setup.block_size);
            ragged += rows
                .iter()
                .filter(|row| row.logits.is_empty() && unfinished(row.read.len() + row.written.len()))
                .count();
        } else {
            world.commit();
        }
        while world.device.results.len() > world.setup.depth {
            world.commit();
        }
        world.read();
    }
    world.verify();
    (tokens, steps, ragged)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_burst_shares_is_computed_once(
        prompts in prompts(),
        block_size in 1..6usize,
        max_tokens in 12..70usize,
        max_sequences in 1..12usize,
        prefill_chunk in 0..20usize,
        depth in 0..3usize,
    ) {
        let mut world = World::new(&Setup {
            block_size,
            num_blocks: 800,
            max_sequences,
            max_rows: 12,
            max_tokens,
            max_pages: 800,
            prefill_chunk,
            depth,
            horizon: 0,
            ..roomy()
        });
        let mut burst = Vec::new();
        for (number, prompt) in prompts.iter().enumerate() {
            let mut tokens = prompt.tokens(number);
            if tokens.len().is_multiple_of(block_size) && block_size > 1 {
                // A last block that is full is never matched by its own request, but by longer ones.
                tokens.push(1);
            }
            world.submit(&tokens, 0, |submit| {
                (submit.max_tokens, submit.cache_salt) = (1, prompt.salt);
                submit.stop_token_ids.clear();
            });
            burst.push((prompt.salt, tokens));
        }
        let (tokens, _, ragged) = computed(&mut world);
        let least = once(&burst, block_size);
        prop_assert_eq!(world.stat("preemptions"), 0);
        if block_size == 1 {
            prop_assert!(tokens <= least);
        } else if prefill_chunk == 0 {
            prop_assert_eq!(tokens, least);
        } else {
            prop_assert!(least <= tokens && tokens <= least + ragged * (block_size - 1));
        }
    }
}

/// Bursts, and what may go wrong with their steps.
#[derive(Debug, Clone)]
enum Turn {
    Burst(Vec<Prompt>),
    Then(Event),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let index = any::<prop::sample::Index>;
    let turn = prop_oneof![
        3 => prompts().prop_map(Turn::Burst),
        8 => Just(Turn::Then(Event::Step)),
        1 => Just(Turn::Then(Event::Commit)),
        2 => Just(Turn::Then(Event::FailOldest)),
        2 => index().prop_map(|index| Turn::Then(Event::Break(index))),
        2 => index().prop_map(|index| Turn::Then(Event::Abort(index))),
    ];
    prop::collection::vec(turn, 1..40)
}

fn troubled() -> impl Strategy<Value = (Setup, Vec<Turn>)> {
    let sizes = (2..5usize, 30..120usize, 8..60usize, 2..12usize);
    (sizes, 0..16usize, 0..3usize, turns(), states()).prop_map(
        |(sizes, prefill_chunk, depth, turns, states)| {
            let (state, slots, interval) = states.unwrap_or_default();
            let (block_size, num_blocks, max_tokens, max_sequences) = sizes;
            let setup = Setup {
                block_size,
                num_blocks: num_blocks + slots * state,
                groups: std::iter::once(Group::FULL)
                    .chain((state > 0).then_some(Group::state(state)))
                    .collect(),
                snapshot_interval: interval * block_size,
                max_sequences,
                max_tokens,
                prefill_chunk,
                depth,
                max_rows: 12,
                max_pages: 400,
                horizon: 2,
                ..roomy()
            };
            (setup, turns)
        },
    )
}

/// Returns how many began again because what they had built on went wrong.
fn suffer((setup, turns): (Setup, Vec<Turn>)) -> u64 {
    let mut world = World::new(&setup);
    for (number, turn) in turns.into_iter().enumerate() {
        match turn {
            Turn::Burst(prompts) => {
                for (own, prompt) in prompts.into_iter().enumerate() {
                    let tokens = prompt.tokens(100 * number + own);
                    world.submit(&tokens, 0, |submit| submit.cache_salt = prompt.salt);
                }
            }
            Turn::Then(event) => happen(&mut world, &event),
        }
    }
    world.finish();
    world.retracted
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_wrong_with_one_harms_no_other(troubled in troubled()) {
        suffer(troubled);
    }
}

#[test]
fn trouble_reaches_those_that_share() {
    let mut runner = TestRunner::deterministic();
    let mut again = || suffer(troubled().new_tree(&mut runner).unwrap().current());
    let retracted: u64 = (0..120).map(|_| again()).sum();
    assert!(retracted >= 20, "{retracted} began again");
}

fn submit(world: &mut World, tokens: &[u32], count: usize) -> Vec<RequestKey> {
    let one = |_| world.submit(tokens, 0, |submit| submit.stop_token_ids.clear());
    (0..count).map(one).collect()
}

fn body(length: usize) -> Vec<u32> {
    Prompt { family: 0, shared: length, own: 0, salt: 0 }.tokens(0)
}

/// Plans a step; tokens of its prompts.
fn plan(world: &mut World) -> Vec<u32> {
    world.plan();
    world.planner.steps.prefills().iter().map(|grant| grant.count).collect()
}

fn wide() -> Setup {
    Setup { max_sequences: 8, max_rows: 8, max_tokens: 128, num_blocks: 200, max_pages: 200, ..roomy() }
}

#[test]
fn choices_of_one_prompt_start_in_the_step_that_computes_it() {
    let mut world = World::new(&wide());
    submit(&mut world, &body(41), 8);
    world.drain();
    assert_eq!(world.plan(), 8);
    let counts: Vec<_> = world.planner.steps.prefills().iter().map(|grant| grant.count).collect();
    assert_eq!(counts, [41, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(world.stat("cached_tokens"), 7 * 40);
    world.finish();
}

#[test]
fn capped_prefills_compute_parts_of_what_they_share_side_by_side() {
    let mut world = World::new(&Setup { prefill_chunk: 8, ..wide() });
    submit(&mut world, &body(66), 4);
    world.drain();
    assert_eq!(plan(&mut world), [8, 8, 8, 8]);
    assert_eq!(plan(&mut world), [8, 8, 8, 8]);
    assert_eq!(plan(&mut world), [2, 2, 2, 2]);
    world.finish();
    assert_eq!(world.stat("prefix_hits"), 4 * 64 - 64);
}

#[test]
fn a_request_that_shares_nothing_is_not_held_up() {
    let mut world = World::new(&wide());
    submit(&mut world, &body(41), 3);
    let other = Prompt { family: 1, shared: 0, own: 30, salt: 0 }.tokens(7);
    submit(&mut world, &other, 1);
    world.drain();
    assert_eq!(world.plan(), 4);
    assert_eq!(world.planner.steps.prefills().last().unwrap().count, 30);
    world.finish();
}

#[test]
fn what_an_aborted_prompt_had_under_way_is_there_for_the_next() {
    for depth in 0..3 {
        let mut world = World::new(&Setup { max_tokens: 16, depth, ..wide() });
        let keys = submit(&mut world, &body(41), 2);
        world.drain();
        assert_eq!((world.plan(), world.planner.steps.prefills()[0].count), (1, 16));
        world.post(&Message::Abort(keys[0]));
        world.cut.insert(keys[0], FinishReason::Abort);
        world.drain();
        assert_eq!((world.plan(), world.planner.steps.prefills()[0].count), (1, 16));
        assert_eq!(world.stat("prefix_hits"), 16);
        world.finish();
        assert_eq!(world.stat("finished_length"), 1);
    }
}

#[test]
fn who_built_on_a_step_that_fails_begins_again() {
    let mut world = World::new(&Setup { max_tokens: 16, depth: 1, ..wide() });
    let keys = submit(&mut world, &body(41), 2);
    world.drain();
    world.plan();
    world.post(&Message::Abort(keys[0]));
    world.cut.insert(keys[0], FinishReason::Abort);
    world.drain();
    assert_eq!(world.plan(), 1, "the second goes on behind the blocks of the step in flight");
    world.fail_oldest();
    assert_eq!(world.stat("preemptions"), 1);
    assert_eq!(world.kv.peek_prefix(0, &body(41), 10), 0, "no request finds what was not computed");
    world.finish();
    assert_eq!((world.stat("finished_abort"), world.stat("finished_length")), (1, 1));
}

#[test]
fn a_prompt_without_a_next_token_takes_no_other_with_it() {
    let mut world = World::new(&wide());
    submit(&mut world, &body(41), 4);
    world.drain();
    assert_eq!(world.plan(), 4);
    let broken = world.break_row(|_| 0).unwrap();
    assert_eq!(world.kv.peek_prefix(0, &body(41), 10), 0);
    assert_eq!((world.stat("running"), world.stat("waiting")), (0, 3));
    world.finish();
    assert_eq!(world.streams[&broken].finish, Some(FinishReason::Error));
    assert_eq!(world.stat("finished_length"), 3);
}

#[test]
fn a_prompt_under_way_goes_on_behind_what_a_better_class_computed_of_it() {
    let mut world = World::new(&Setup { max_tokens: 24, depth: 1, ..wide() });
    submit(&mut world, &body(61), 1);
    world.drain();
    assert_eq!(plan(&mut world), [24]);
    world.submit(&body(61), 0, |submit| {
        submit.priority = -1;
        submit.stop_token_ids.clear();
    });
    world.drain();
    assert_eq!(plan(&mut world), [24], "the first turn is that of the better class");
    assert_eq!(plan(&mut world), [13, 1]);
    world.finish();
}
