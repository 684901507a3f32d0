//! Random setups and random events; tiny caches, so that preemption is the rule.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::expected::budget;
use super::extensions::ask;
use super::model::prompt;
use super::penalties::{PenaltyRules, penalty_rules};
use super::setup::{Drafts, Setup};
use super::world::World;
use crate::features::grammars::GrammarExtension;
use crate::features::logprobs::LogProbsExtension;
use crate::features::pooling::{Pooling, PoolingExtension};
use crate::features::prompt_logprobs::PromptLogProbsExtension;
use pyengine_kv_allocator::Group;
use pyengine_messages::{FinishReason, Message};

/// One thing that happens.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Submit {
        family: u64,
        length: usize,
        max: u32,
        min: u32,
        resumed: usize,
        class: i32,
        tenant: u64,
        salt: u64,
        grammar: Option<u8>,
        // With a thinking budget, whose reasoning the prompt has opened, or not; without a grammar.
        thinking: Option<(u32, bool)>,
        penalties: Option<Box<PenaltyRules>>,
        logprobs: Option<u8>,
        pooling: Option<Pooling>,
        prompt_logprobs: Option<(u8, u8, u8)>,
    },
    Deadline {
        after_ns: u64,
    },
    Abort(prop::sample::Index),
    Stop(prop::sample::Index),
    // Of a request whose drafts the device verifies just now: an abort, or a stop string.
    Interrupt(prop::sample::Index, bool),
    Step,
    Commit,
    Fail,
    FailOldest,
    Break(prop::sample::Index),
    Ring(usize),
    Wait(u64),
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let submit = (0..3u64, 1..24usize, 0..50u32, 0..6u32, 0..6usize, -1..2i32, 0..3u64, 0..2u64);
    let grammar = prop_oneof![3 => Just(None), 1 => (0..30u8).prop_map(Some)];
    let pooling =
        prop_oneof![6 => Just(None), 1 => Just(Some(Pooling::Last)), 1 => Just(Some(Pooling::Mean))];
    let thinking = prop::option::weighted(0.3, (0..12u32, any::<bool>()));
    let logprobs = prop::option::of(0..3u8);
    let prompts = prop::option::weighted(0.3, (0..3u8, 0..30u8, 0..4u8));
    let others = (logprobs, pooling, prompts, thinking);
    let submit = (submit, grammar, prop::option::of(penalty_rules().prop_map(Box::new)), others).prop_map(
        |(submit, grammar, penalties, (logprobs, pooling, prompt_logprobs, thinking))| {
            let (family, length, max, min, resumed, class, tenant, salt) = submit;
            let resumed = resumed.saturating_sub(3);
            Event::Submit {
                family,
                length,
                max,
                min,
                resumed,
                class,
                tenant,
                salt,
                grammar,
                thinking: thinking.filter(|_| grammar.is_none()),
                penalties,
                logprobs,
                pooling,
                prompt_logprobs,
            }
        },
    );
    prop_oneof![
        6 => submit,
        1 => (1..50u64).prop_map(|after_ns| Event::Deadline { after_ns }),
        1 => any::<prop::sample::Index>().prop_map(Event::Abort),
        1 => any::<prop::sample::Index>().prop_map(Event::Stop),
        4 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(index, stop)| Event::Interrupt(index, stop)),
        12 => Just(Event::Step),
        6 => Just(Event::Commit),
        1 => Just(Event::Fail),
        1 => Just(Event::FailOldest),
        1 => any::<prop::sample::Index>().prop_map(Event::Break),
        1 => (0..3usize).prop_map(Event::Ring),
        1 => (1..40u64).prop_map(Event::Wait),
    ]
}

/// Half of the models have no windows; of the others some have no layer that sees all tokens.
pub(super) fn groups() -> impl Strategy<Value = Vec<Group>> {
    let windows = prop::collection::vec((1..30usize, 1..4usize), 1..3);
    prop_oneof![
        3 => Just(vec![Group::FULL]),
        3 => (0..3usize, windows).prop_map(|(tables, windows)| {
            let windows = windows.into_iter().map(|(window, tables)| Group::window(window, tables));
            std::iter::once(Group::full(tables)).chain(windows).collect()
        }),
    ]
}

/// Some models have states: pages of one, how many have room, and blocks from one snapshot to the next.
pub(super) fn states() -> impl Strategy<Value = Option<(usize, usize, usize)>> {
    prop::option::weighted(0.4, (1..7usize, 1..9usize, 0..4usize))
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let sizes = (1..6usize, 2..24usize, any::<bool>(), 1..8usize, 1..24usize);
    let beside = prop_oneof![2 => Just(0), 1 => 1..12usize];
    let bounds = (1..9usize, 2..80usize, 12..90usize, 1..12usize, (0..6usize, beside), 0..3usize);
    let drafts = prop_oneof![
        2 => Just(Drafts::Off),
        1 => (1..6usize).prop_map(Drafts::Host),
        1 => (1..6usize).prop_map(Drafts::Device),
        2 => (1..6usize).prop_map(Drafts::Model),
    ];
    let short_context = prop_oneof![2 => Just(0), 1 => 1..60usize];
    (sizes, bounds, 0..3u32, drafts, 64..200usize, groups(), short_context, states()).prop_map(
        |(sizes, bounds, horizon, drafts, max_penalties, mut groups, short_context, states)| {
            // The pages of these blocks in all groups, and of these states.
            let tables: usize = groups.iter().map(|group| group.tables).sum();
            let (state, slots, interval) = states.unwrap_or_default();
            groups.extend((state > 0).then_some(Group::state(state)));
            let (block_size, num_blocks, prefix_cache, max_sequences, max_tokens) = sizes;
            let (
                max_rows,
                max_pages,
                max_context,
                max_waiting,
                (prefill_chunk, prefill_beside_decodes),
                depth,
            ) = bounds;
            Setup {
                block_size,
                num_blocks: num_blocks * tables + slots * state,
                groups,
                prefix_cache,
                max_sequences,
                max_tokens,
                max_rows,
                max_pages,
                max_context,
                max_waiting,
                prefill_chunk,
                prefill_beside_decodes,
                depth,
                horizon,
                drafts,
                max_penalties,
                short_context,
                snapshot_interval: interval * block_size,
            }
        },
    )
}

pub(super) fn happen(world: &mut World, event: &Event) {
    match *event {
        Event::Submit {
            family,
            length,
            max,
            min,
            resumed,
            class,
            tenant,
            salt,
            grammar,
            thinking,
            ref penalties,
            logprobs,
            pooling: None,
            prompt_logprobs,
        } => {
            world.submit(&prompt(family, length), resumed, |submit| {
                submit.max_tokens = max;
                submit.min_tokens = min;
                submit.priority = class;
                submit.tenant = tenant;
                submit.cache_salt = salt;
                if let Some(length) = grammar {
                    ask(submit, &GrammarExtension { description: vec![length], close: false });
                }
                if let Some((tokens, begun)) = thinking {
                    ask(submit, &budget(tokens, begun));
                }
                if let Some(penalties) = penalties {
                    (**penalties).clone().ask(submit);
                }
                if let Some(count) = logprobs {
                    ask(submit, &LogProbsExtension { count });
                }
                if let Some((count, first, tokens)) = prompt_logprobs {
                    let first = u32::from(first).min(length as u32 - 1);
                    let following = (0..u32::from(tokens)).flat_map(u32::to_le_bytes).collect();
                    ask(submit, &PromptLogProbsExtension { count, first, following });
                }
            });
        }
        Event::Submit { family, length, class, tenant, salt, pooling: Some(pooling), .. } => {
            world.submit(&prompt(family, length), 0, |submit| {
                submit.max_tokens = 1;
                submit.priority = class;
                submit.tenant = tenant;
                submit.cache_salt = salt;
                ask(submit, &PoolingExtension { pooling });
            });
        }
        Event::Deadline { after_ns } => {
            let deadline_ns = world.now_ns + after_ns;
            let key = world.submit(&prompt(1, 9), 0, |submit| {
                submit.max_tokens = 40;
                submit.deadline_ns = deadline_ns;
            });
            world.cut.insert(key, FinishReason::Timeout);
        }
        Event::Abort(ref index) | Event::Stop(ref index) => {
            let mut keys: Vec<_> = world.expected.keys().copied().collect();
            keys.sort_unstable();
            if keys.is_empty() {
                return;
            }
            let key = *index.get(&keys);
            if world.cut.contains_key(&key) {
                return;
            }
            let stop = matches!(event, Event::Stop(_));
            let reason = if stop { FinishReason::Stop } else { FinishReason::Abort };
            world.cut.insert(key, reason);
            world.post(&if stop { Message::StopMatched(key) } else { Message::Abort(key) });
        }
        Event::Interrupt(ref index, stop) => {
            let mut keys = world.verified();
            keys.retain(|key| !world.cut.contains_key(key));
            if !keys.is_empty() {
                let key = *index.get(&keys);
                let reason = if stop { FinishReason::Stop } else { FinishReason::Abort };
                world.cut.insert(key, reason);
                world.post(&if stop { Message::StopMatched(key) } else { Message::Abort(key) });
                world.drain();
            }
        }
        Event::Step => {
            world.drain();
            while world.device.results.len() > world.setup.depth {
                world.commit();
            }
            if world.plan() == 0 {
                // As the scheduler does it: drafts follow these tokens.
                world.commit_only();
                world.plan();
            }
            world.planner.send().unwrap();
        }
        Event::Commit => {
            world.commit();
        }
        Event::Fail => world.fail(),
        Event::FailOldest => world.fail_oldest(),
        Event::Break(ref index) => {
            world.break_row(|rows| index.index(rows));
        }
        Event::Ring(room) => {
            world.read();
            world.ring.lock().unwrap().1 = if room == 2 { usize::MAX } else { room };
        }
        Event::Wait(ns) => world.now_ns += ns,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(400),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_gets_its_tokens(setup in setup(), events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::new(&setup);
        for event in &events {
            happen(&mut world, event);
        }
        world.finish();
    }
}

/// A property is worth what its examples reach.
#[test]
fn random_work_reaches_every_way_to_end_and_preemption() {
    let mut runner = TestRunner::deterministic();
    let mut sums: HashMap<String, u64> = HashMap::new();
    let (mut cut, mut vectors) = (0, 0);
    let (mut restored, mut snapshots, mut pending) = (0, 0, 0);
    for _ in 0..440 {
        let example = (setup(), prop::collection::vec(event(), 1..120)).new_tree(&mut runner).unwrap();
        let (setup, events) = example.current();
        let mut world = World::new(&setup);
        events.iter().for_each(|event| happen(&mut world, event));
        world.finish();
        world.planner.stats().into_iter().for_each(|(name, count)| *sums.entry(name).or_default() += count);
        cut += world.cut_in_verification;
        restored += world.device.states.restored;
        snapshots += world.device.states.taken;
        pending += world.device.states.accepted;
        vectors += world.streams.values().filter(|stream| !stream.vector.is_empty()).count();
    }
    for name in ["preemptions", "prefix_hits", "cached_tokens", "steps"] {
        assert!(sums[name] >= 100, "{name}: {sums:?}");
    }
    assert!(sums["certain_tokens"] >= 10, "{sums:?}");
    assert!(vectors >= 100, "{vectors} vectors");
    assert!(restored >= 20 && snapshots >= 500 && pending >= 500, "{restored} {snapshots} {pending}");
    assert!(cut >= 10, "{cut} ended while drafts of theirs were verified");
    for name in ["stop", "length", "abort", "timeout", "overloaded", "error"] {
        assert!(sums[format!("finished_{name}").as_str()] >= 20, "{name}: {sums:?}");
    }
}
