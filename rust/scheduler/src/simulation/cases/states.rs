//! Layers with states: where sequences begin, what is left for the next ones, and how much of prompts is found.

use super::super::model::{VOCABULARY, mix, prompt};
use super::super::random::{Event, happen};
use super::super::setup::{Drafts, Setup, roomy};
use super::super::world::World;
use super::{finished, steps};
use pyengine_kv_allocator::Group;
use pyengine_messages::{FinishReason, Message, RequestKey};

/// Blocks of 4 tokens in one page, states of 3 pages, a snapshot every 12 tokens.
fn stateful() -> Setup {
    let groups = vec![Group::FULL, Group::state(3)];
    Setup { groups, num_blocks: 200, max_pages: 200, max_tokens: 64, snapshot_interval: 12, ..roomy() }
}

fn text(seed: u64, length: usize) -> Vec<u32> {
    (0..length).map(|at| (mix(seed + 99, at as u64) % VOCABULARY) as u32).collect()
}

fn ask(world: &mut World, tokens: &[u32], answer: u32) -> RequestKey {
    world.submit(tokens, 0, |submit| {
        submit.max_tokens = answer;
        submit.stop_token_ids.clear();
    })
}

/// Tokens of a request's prompt that were found, once it has come to its end alone.
fn found(world: &mut World, tokens: &[u32]) -> u64 {
    let before = world.stat("prefix_hits");
    ask(world, tokens, 1);
    world.finish();
    world.stat("prefix_hits") - before
}

#[test]
fn a_prompt_is_found_up_to_its_last_border() {
    let mut world = World::new(&Setup { snapshot_interval: 0, ..stateful() });
    assert_eq!(found(&mut world, &text(0, 23)), 0);
    assert_eq!(found(&mut world, &text(0, 23)), 20);
    assert_eq!(found(&mut world, &[text(0, 23), text(1, 9)].concat()), 20);
    assert_eq!(found(&mut world, &text(0, 19)), 0, "there is no snapshot before");
    assert_eq!(found(&mut world, &text(0, 19)), 16);
}

#[test]
fn the_second_that_shares_a_prefix_leaves_a_snapshot_for_the_third() {
    let mut world = World::new(&Setup { snapshot_interval: 0, ..stateful() });
    let of = |own: u64| [text(0, 24), text(own, 10)].concat();
    assert_eq!([1, 2, 3, 4].map(|own| found(&mut world, &of(own))), [0, 0, 24, 24]);
}

#[test]
fn the_next_turn_finds_the_answer_up_to_its_last_interval() {
    for (depth, drafts) in [(0, Drafts::Off), (1, Drafts::Off), (1, Drafts::Host(3)), (1, Drafts::Model(3))] {
        let mut world = World::new(&Setup { depth, drafts, ..stateful() });
        let first = ask(&mut world, &text(0, 10), 40);
        world.finish();
        let answer = world.streams[&first].tokens.clone();
        assert_eq!(answer.len(), 40);
        // 49 tokens have a state, and so do their 48 first.
        assert_eq!(found(&mut world, &[text(0, 10), answer, text(1, 9)].concat()), 48);
        assert_eq!(world.device.states.accepted > 0, drafts != Drafts::Off);
    }
}

#[test]
fn choices_of_one_prompt_wait_for_its_snapshot() {
    let mut world = World::new(&stateful());
    (0..4).for_each(|_| _ = ask(&mut world, &text(0, 41), 8));
    world.drain();
    let mut counts = |rows: usize| {
        assert_eq!(world.plan(), rows);
        world.planner.steps.prefills().iter().map(|grant| grant.count).collect::<Vec<_>>()
    };
    // A chunk has one border: those of 12, 24, 36, and of the prompt at 40.
    assert_eq!(counts(1), [12]);
    assert_eq!(counts(1), [12]);
    assert_eq!(counts(1), [12]);
    assert_eq!(counts(1), [5]);
    assert_eq!(counts(4), [1, 1, 1], "the others begin from the snapshot, with one token");
    world.finish();
    assert_eq!(world.stat("prefix_hits"), 3 * 40);
}

#[test]
fn a_request_that_shares_nothing_waits_for_no_snapshot() {
    let mut world = World::new(&stateful());
    (0..3).for_each(|seed| _ = ask(&mut world, &text(seed, 11), 8));
    world.drain();
    assert_eq!(world.plan(), 3);
    world.finish();
}

#[test]
fn what_waits_for_an_aborted_prompt_goes_on_from_what_it_left() {
    let mut world = World::new(&stateful());
    let keys = [0; 2].map(|_| ask(&mut world, &text(0, 41), 8));
    world.drain();
    assert_eq!(world.plan(), 1);
    world.post(&Message::Abort(keys[0]));
    world.cut.insert(keys[0], FinishReason::Abort);
    world.drain();
    assert_eq!(world.plan(), 1);
    assert_eq!(world.stat("prefix_hits"), 12);
    world.finish();
}

#[test]
fn drafts_end_at_the_next_border() {
    let mut world = World::new(&Setup { drafts: Drafts::Device(5), depth: 0, ..stateful() });
    ask(&mut world, &text(0, 8), 60);
    let (mut drafted, mut borders) = (0, 0);
    while world.running() {
        world.drain();
        if world.plan() > 0 {
            for grant in world.planner.steps.decodes() {
                let end = world.planner.steps.table().progress[grant.slot as usize].planned;
                let certain = end - grant.drafts;
                assert!(grant.drafts == 0 || (end - 1) / 12 == certain / 12, "a border within drafts");
                drafted += grant.drafts;
                borders += u32::from(end.is_multiple_of(12) && grant.drafts > 0);
            }
        }
        world.commit();
        world.read();
    }
    world.verify();
    assert!(drafted > 20 && borders > 0 && world.device.states.accepted > 0, "{drafted} {borders}");
    assert_eq!(world.device.states.taken, 1 + 5, "none of the 60 tokens' borders was passed by");
}

#[test]
fn a_snapshot_of_a_step_that_fails_is_not_begun_from() {
    for behind in [0, 1] {
        let mut world = World::new(&Setup { depth: 1, ..stateful() });
        let key = ask(&mut world, &text(0, 10), 30);
        // The snapshot at 12 is taken by the row behind that border, of tokens in the steps before.
        steps(&mut world, 40, |world| world.device.states.taken == 2);
        for _ in 0..behind {
            world.commit();
        }
        world.fail_oldest();
        let answer = world.expected[&key].tokens[..20].to_vec();
        assert!(world.kv.peek_prefix(0, &answer, 5) <= 2, "the state at 12 was not computed");
        ask(&mut world, &answer, 10);
        world.finish();
    }
}

#[test]
fn everything_ends_with_the_engine() {
    let mut world = World::new(&stateful());
    (0..6).for_each(|own| _ = ask(&mut world, &[text(0, 24), text(own, 10)].concat(), 30));
    steps(&mut world, 40, |world| world.device.states.taken >= 6);
    world.planner.abort_all(&mut world.kv).unwrap();
    world.check();
    assert_eq!(world.kv.counts().held, 0);
    assert!(world.kv.peek_prefix(0, &text(0, 24), 6) <= 6);
}

#[test]
fn one_sequence_at_a_time_is_enough() {
    for (depth, prefix_cache) in [(0, false), (1, false), (0, true), (1, true), (2, true)] {
        let setup = Setup { num_blocks: 5 + 3, snapshot_interval: 4, depth, prefix_cache, ..stateful() };
        let mut world = World::new(&setup);
        for family in 0..12 {
            // 12 + 9 tokens take 5 blocks of 4 and one token that needs no KV; 3 pages are for the state.
            world.submit(&prompt(family % 3, 12), 0, |submit| {
                submit.max_tokens = 9;
                submit.stop_token_ids.clear();
            });
        }
        world.finish();
        assert_eq!(world.stat("finished_length"), 12);
    }
}

#[test]
fn a_preempted_request_gets_its_tokens() {
    let mut world = World::new(&Setup { num_blocks: 40 + 12, max_context: 150, ..stateful() });
    let keys: Vec<_> = (0..4).map(|seed| ask(&mut world, &text(seed, 4), 100)).collect();
    world.finish();
    assert!(world.stat("preemptions") > 0);
    assert!(keys.iter().all(|key| finished(*key)(&world)));
    assert_eq!(world.stat("completion_tokens"), 400);
}

#[test]
fn a_preempted_request_goes_on_from_its_last_snapshot() {
    for depth in [0, 1] {
        // Two of 26 blocks and 3 pages each: the first comes to its end in what the state of the second leaves.
        let setup = Setup { num_blocks: 52, max_context: 150, depth, snapshot_interval: 40, ..stateful() };
        let mut world = World::new(&setup);
        (0..2).for_each(|seed| _ = ask(&mut world, &text(seed, 22), 80));
        steps(&mut world, 200, |world| world.stat("preemptions") > 0);
        assert_eq!(world.stat("prefix_hits"), 0);
        world.finish();
        assert_eq!(world.stat("preemptions"), 1);
        assert!(world.stat("prefix_hits") >= 72, "{}", world.stat("prefix_hits"));
        assert!(world.stat("snapshot_hits") == 1 && world.kv.num_snapshots() > 0);
        assert!(world.stat("snapshots_taken") >= world.device.states.taken);
    }
}

/// Prefix hits of a workload, in tokens, where no layer has a state and where some have, in as many pages.
fn compare(run: impl Fn(&mut World)) -> (u64, u64) {
    let pool = Setup {
        block_size: 16,
        num_blocks: 1500,
        max_sequences: 8,
        max_rows: 8,
        max_tokens: 256,
        max_pages: 1500,
        max_context: 2000,
        snapshot_interval: 64,
        ..roomy()
    };
    let hits = |groups: Vec<Group>| {
        let mut world = World::new(&Setup { groups, ..pool.clone() });
        run(&mut world);
        world.finish();
        world.stat("prefix_hits")
    };
    (hits(vec![Group::FULL]), hits(vec![Group::FULL, Group::state(16)]))
}

#[test]
fn shared_system_prompts_are_found_as_with_full_attention() {
    let (full, found) = compare(|world| {
        for request in 0..80 {
            ask(world, &[text(request % 4, 400), text(1000 + request, 30)].concat(), 12);
            (0..3).for_each(|_| happen(world, &Event::Step));
        }
    });
    assert!(full > 25_000, "{full}");
    assert!(found * 100 >= full * 95, "{found} of {full}");
}

#[test]
fn growing_conversations_are_found_as_with_full_attention() {
    let (full, found) = compare(|world| {
        let mut turns: Vec<Vec<u32>> = (0..3).map(|own| text(own, 500)).collect();
        for turn in 0..7 {
            let keys: Vec<_> = turns.iter().map(|tokens| ask(world, tokens, 64)).collect();
            world.finish();
            for (at, (tokens, key)) in turns.iter_mut().zip(keys).enumerate() {
                tokens.extend(&world.streams[&key].tokens);
                tokens.extend(text(100 * turn + at as u64, 40));
            }
        }
    });
    assert!(full > 14_000, "{full}");
    assert!(found * 100 >= full * 95, "{found} of {full}");
}
