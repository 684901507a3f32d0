//! One case for each promise of the planner.

use std::collections::VecDeque;

use pyengine_kernels_cpu::sampler::SamplingRow;

use super::super::{LogProbs, StepResults};
use super::device::Expected;
use super::penalties::PenaltyRules;
use super::random::{Event, happen};
use super::world::{Drafts, Setup, World, prompt, roomy};
use crate::error::Error;
use crate::kv_allocator::Group;
use crate::messages::{FinishReason, Message, RequestKey, Submit};

/// The results of a step that has tokens only.
fn tokens<'a>(sampled: &'a [i32], counts: &'a [i32]) -> StepResults<'a> {
    StepResults { sampled, counts, ..StepResults::default() }
}

/// Runs steps until `done`; each is drained, planned and, one behind, committed.
fn steps(world: &mut World, most: usize, mut done: impl FnMut(&World) -> bool) {
    for _ in 0..most {
        if done(world) {
            return;
        }
        happen(world, &Event::Step);
        world.read();
    }
    panic!("not done after {most} steps: {:?}", world.planner.stats());
}

fn finished(key: RequestKey) -> impl Fn(&World) -> bool {
    move |world| world.streams.get(&key).is_some_and(|stream| stream.finish.is_some())
}

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
fn a_request_preempted_while_drafts_are_verified_goes_on_where_it_was() {
    // A prompt that comes while drafts of the worst class are verified is planned beside them, and so is the next token
    // of requests without drafts: the block that it lacks is taken from the worst class.
    let mut preempted = 0;
    for (num_blocks, steps) in (6..16).flat_map(|blocks| (1..25).map(move |steps| (blocks, steps))) {
        let tight = Setup { num_blocks, drafts: Drafts::Host(3), horizon: 0, max_context: 40, ..roomy() };
        let mut world = World::new(&tight);
        let mut submit = |class: i32, prediction: &[u8]| {
            world.submit(&prompt(class as u64, 4), 0, |submit| {
                submit.max_tokens = 20;
                submit.priority = class;
                submit.stop_token_ids.clear();
                submit.prediction = prediction.to_vec();
            })
        };
        submit(0, &[47, 0, 0, 0]); // wrong from the beginning: no drafts
        submit(1, &[]);
        (0..steps).for_each(|_| happen(&mut world, &Event::Step));
        world.submit(&prompt(2, 4), 0, |submit| submit.max_tokens = 3);
        world.finish();
        preempted += world.preempted_in_verification;
    }
    assert!(preempted > 0);
}

#[test]
fn steps_with_drafts_are_planned_while_drafts_are_verified() {
    let ahead = Setup { drafts: Drafts::Ahead(3), ..roomy() };
    let windows = vec![Group::FULL, Group { window: Some(9), tables: 1 }];
    let cases = [
        (ahead.clone(), true),
        // The host has a proposer, too; the window of some layers depends on how many drafts are right.
        (Setup { drafts: Drafts::Device(3), ..ahead.clone() }, false),
        (Setup { num_blocks: 128, groups: windows, ..ahead }, false),
    ];
    for (setup, follows) in cases {
        let mut world = World::new(&setup);
        for family in 0..4 {
            world.submit(&prompt(family, 6), 0, |submit| {
                submit.max_tokens = 60;
                submit.stop_token_ids.clear();
            });
        }
        let (mut drafted, mut beside) = (0, 0);
        while world.running() {
            world.drain();
            let verified = world.verified().len();
            if world.plan() > 0 {
                let step = world.planner.steps.in_flight().back().unwrap();
                drafted += usize::from(step.num_logits > step.num_sampled);
                beside += usize::from(verified > 0);
            } else {
                world.commit();
            }
            while world.device.results.len() > setup.depth {
                world.commit();
            }
            world.read();
        }
        world.verify();
        assert!(drafted > 20, "{drafted}");
        assert_eq!(beside > 20, follows, "{beside} of {drafted}");
        assert_eq!(world.device.moved > 0, follows);
    }
}

#[test]
fn nothing_is_preempted_for_drafts_in_flight() {
    // Two sequences fill the cache; what one takes for right would need a block of the other, and often does not.
    let setup = Setup { num_blocks: 10, horizon: 0, drafts: Drafts::Ahead(3), ..roomy() };
    let mut world = World::new(&setup);
    for family in 0..2 {
        world.submit(&prompt(family, 4), 0, |submit| {
            submit.max_tokens = 16;
            submit.stop_token_ids.clear();
        });
    }
    world.finish();
    assert!(world.device.assuming > 0);
    assert_eq!(world.stat("preemptions"), 0);
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
    let id = world.planner.requests.find(keys[0]).unwrap();
    assert_eq!(world.planner.requests.get(id).slot, None);
    assert!(world.planner.requests.get(id).ticket.resumed);
    world.finish();
}

#[test]
fn a_step_that_wants_log_probabilities_must_get_them() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    world.submit(&prompt(0, 6), 0, |submit| submit.logprobs = Some(2));
    world.drain();
    assert_eq!(world.plan(), 1);
    let (kv, planner) = (&mut world.kv, &mut world.planner);
    let logprobs = |tokens, logprobs, chosen| Some(LogProbs { tokens, logprobs, chosen });
    for given in [
        None,
        logprobs(&[1, 2], &[0.0; 2], &[]),
        logprobs(&[1], &[0.0; 1], &[0.0]),
        logprobs(&[1, 2], &[0.0; 3], &[0.0]),
    ] {
        assert!(planner.commit(kv, &StepResults { logprobs: given, ..tokens(&[1], &[1]) }, 1).is_err());
    }
    let key = world.submit(&prompt(1, 6), 0, |submit| submit.logprobs = Some(21));
    world.cut.insert(key, FinishReason::Error);
    world.finish();
}

#[test]
fn a_row_without_room_for_its_penalties_comes_first_in_the_next_step() {
    // A row has 40 penalties and more; the step has room for 64.
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let keys = [0, 1, 2, 3].map(|_| {
        let body: Vec<u32> = (0..40).collect();
        world.submit(&body, 0, |submit| {
            submit.max_tokens = 9;
            submit.stop_token_ids.clear();
            submit.sampling.presence_penalty = 1.0;
            submit.sampling.repetition_penalty = 1.5;
            submit.bad_words = vec![vec![1, 2]];
        })
    });
    let plain = world.submit(&prompt(7, 4), 0, |submit| submit.max_tokens = 30);
    let lengths = |world: &World| keys.map(|key| world.streams.get(&key).map_or(0, |own| own.tokens.len()));
    let mut steps_left = 200;
    while lengths(&world).iter().any(|length| *length < 9) {
        happen(&mut world, &Event::Step);
        world.read();
        let now = lengths(&world);
        let under_way = now.iter().filter(|length| **length > 0);
        let (least, most) = (under_way.clone().min(), under_way.max());
        assert!(most.copied().unwrap_or(0) <= least.copied().unwrap_or(0) + 2, "{now:?}");
        steps_left -= 1;
        assert!(steps_left > 0, "{now:?}");
    }
    steps(&mut world, 50, finished(plain));
    world.finish();
}

#[test]
fn penalties_of_a_sequence_that_ended_are_none_and_unsound_ones_are_an_error() {
    let mut world = World::new(&roomy());
    let frequency = |frequency_penalty| SamplingRow { frequency_penalty, ..SamplingRow::NEUTRAL };
    let (logit_bias, bad_words, dry_breakers) = (vec![(3, 1.0)], Vec::new(), Vec::new());
    let rules = PenaltyRules { sampling: frequency(1.0), logit_bias, bad_words, dry_breakers };
    let unsound = [
        PenaltyRules { logit_bias: vec![(64, 1.0)], ..rules.clone() },
        PenaltyRules { logit_bias: vec![(3, f32::NAN)], ..rules.clone() },
        PenaltyRules {
            sampling: SamplingRow { repetition_penalty: 0.0, ..SamplingRow::NEUTRAL },
            ..rules.clone()
        },
        PenaltyRules { sampling: frequency(f32::INFINITY), ..rules.clone() },
        PenaltyRules { bad_words: vec![vec![]], ..rules.clone() },
        PenaltyRules { bad_words: vec![vec![1, 64]], ..rules.clone() },
    ];
    for penalties in unsound {
        let key = world.submit(&prompt(0, 5), 0, |submit| rules.clone().ask(submit));
        // The submission as it was meant stays expected; what is sent is not.
        let Some(Message::Submit(mut submit)) =
            world.inbox.pop_back().map(|bytes| Message::decode(&bytes).unwrap())
        else {
            panic!()
        };
        penalties.ask(&mut submit);
        world.post(&Message::Submit(submit));
        world.cut.insert(key, FinishReason::Error);
    }
    let key = world.submit(&prompt(1, 5), 0, |submit| rules.clone().ask(submit));
    world.drain();
    assert_eq!(world.plan(), 1);
    world.cut.insert(key, FinishReason::Abort);
    // SAFETY: every byte of a u64 is a u8.
    let bytes = unsafe { world.words.align_to_mut::<u8>() }.1;
    assert_eq!(world.planner.plan(&mut world.kv, bytes, 1).unwrap(), 1);
    assert!(world.planner.fill_penalties(bytes).is_err(), "a step before it is in flight");
    world.commit();
    world.post(&Message::Abort(key));
    world.drain();
    // SAFETY: as above.
    let bytes = unsafe { world.words.align_to_mut::<u8>() }.1;
    assert_eq!(world.planner.fill_penalties(bytes).unwrap(), 0);
    world.planner.commit(&mut world.kv, &tokens(&[1], &[1]), 1).unwrap();
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
fn prompts_that_cannot_fit_are_errors_and_answers_that_cannot_are_cut() {
    let mut world = World::new(&Setup { num_blocks: 5, max_context: 19, ..roomy() });
    let keys = [19, 20, 18]
        .map(|length| world.submit(&prompt(0, length), 0, |submit| submit.stop_token_ids.clear()));
    world.finish();
    let ends = keys.map(|key| (world.streams[&key].finish.unwrap(), world.streams[&key].tokens.len()));
    assert_eq!(ends, [(FinishReason::Length, 0), (FinishReason::Error, 0), (FinishReason::Length, 1)]);
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
fn waiting_and_gaps_are_measured_by_the_clock() {
    let mut world = World::new(&Setup { depth: 0, max_sequences: 1, ..roomy() });
    for family in 0..2 {
        world.submit(&prompt(family, 4), 0, |submit| {
            submit.max_tokens = 3;
            submit.stop_token_ids.clear();
        });
    }
    while world.running() {
        world.drain();
        if world.plan() > 0 {
            world.now_ns += 10;
            world.commit();
        }
    }
    // The first has its tokens at 10, 20 and 30; then the second is admitted: 40, 50, 60.
    let wanted = [
        ("queue_time_ns", 2, 30),
        ("time_to_first_token_ns", 2, 10 + 40),
        ("inter_token_latency_ns", 4, 4 * 10),
        ("duration_ns", 2, 30 + 60),
        ("prompt_length", 2, 8),
        ("completion_length", 2, 6),
    ];
    for (name, count, sum) in wanted {
        assert_eq!(world.histogram(name), (count, sum), "{name}");
    }
    world.verify();
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
    assert!(world.planner.commit(&mut world.kv, &tokens(&[], &[]), 0).is_err());
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

#[test]
fn tokens_of_another_count_are_refused_and_nothing_is_lost() {
    let mut world = World::new(&roomy());
    world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    world.plan();
    assert!(world.planner.commit(&mut world.kv, &tokens(&[1, 2], &[1, 1]), 0).is_err());
    world.finish();
}

#[test]
fn a_steps_time_is_measured_where_nothing_else_is_in_it() {
    let mut world = World::new(&Setup { max_sequences: 2, drafts: Drafts::Host(2), ..roomy() });
    let submit = |world: &mut World, family, max_tokens| {
        world.submit(&prompt(family, 6), 0, |submit| {
            submit.max_tokens = max_tokens;
            submit.stop_token_ids.clear();
        })
    };
    let step = |world: &mut World| {
        world.now_ns += 10;
        world.drain();
        world.plan();
        let decodes = world.planner.steps.in_flight().back().is_some_and(|step| step.prefills == 0);
        let measured = decodes && world.planner.features.drafts.is_measured();
        world.commit();
        world.read();
        measured
    };
    submit(&mut world, 0, 100);
    assert_eq!([0; 3].map(|_| step(&mut world)), [false, false, true], "a prompt, and the step behind it");
    submit(&mut world, 1, 1);
    assert_eq!([0; 3].map(|_| step(&mut world)), [false, false, true], "it ended with its prompt");
    let short = submit(&mut world, 2, 8);
    while world.streams.get(&short).is_none_or(|stream| stream.finish.is_none()) {
        step(&mut world);
    }
    assert_eq!([0; 2].map(|_| step(&mut world)), [false, true], "a request ended");
    let aborted = submit(&mut world, 3, 50);
    assert_eq!([0; 3].map(|_| step(&mut world)), [false, false, true]);
    world.cut.insert(aborted, FinishReason::Abort);
    world.post(&Message::Abort(aborted));
    assert_eq!([0; 2].map(|_| step(&mut world)), [false, true], "a request was aborted");
    world.ring.lock().unwrap().1 = 0;
    assert_eq!([0; 2].map(|_| step(&mut world)), [true, false], "the detokenizer is behind");
    world.ring.lock().unwrap().1 = usize::MAX;
    assert_eq!([0; 2].map(|_| step(&mut world)), [false, true]);
    world.finish();
}

#[test]
fn a_prompt_is_scored_from_the_first_token_that_is_wanted() {
    let mut world = World::new(&Setup { depth: 0, prefill_chunk: 5, ..roomy() });
    let key = world.submit(&prompt(0, 30), 0, |submit| submit.max_tokens = 0);
    steps(&mut world, 20, finished(key));
    let cached = |world: &World| world.stat("cached_tokens");
    let before = cached(&world);
    // Each computes again what its logits need, and no more: blocks have four tokens.
    for (from, saved) in [(0, 0), (9, 8), (29, 28)] {
        let key = world.submit(&prompt(0, 30), 0, |submit| {
            submit.max_tokens = from % 2;
            submit.prompt_logprobs = Some(2);
            submit.prompt_logprobs_from = from;
        });
        let known = cached(&world);
        steps(&mut world, 20, finished(key));
        assert_eq!(cached(&world) - known, saved, "from {from}");
        assert_eq!(world.streams[&key].prompt_logprobs.len(), 29 - from as usize);
    }
    assert_eq!(cached(&world) - before, 36);
    for (count, from) in [(21, 0), (0, 30)] {
        let key = world.submit(&prompt(1, 30), 0, |submit| {
            (submit.prompt_logprobs, submit.prompt_logprobs_from) = (Some(count), from);
        });
        world.cut.insert(key, FinishReason::Error);
    }
    world.drain();
    world.read();
    assert!(world.streams.values().all(|stream| stream.finish.is_some()));
    // What was refused was told nothing, and is not looked at below.
    world.expected.retain(|_, expected| expected.submit.prompt_logprobs.is_none_or(|count| count <= 2));
    world.expected.retain(|_, expected| expected.submit.prompt_logprobs_from < 30);
}

#[test]
fn a_preempted_prompt_goes_on_where_it_was_scored() {
    // Room for the prompts, and not for what both answer. Each prompt takes many steps.
    let setup = Setup { depth: 1, num_blocks: 24, prefill_chunk: 3, max_tokens: 8, horizon: 0, ..roomy() };
    let mut world = World::new(&setup);
    let scored = |world: &mut World, family| {
        world.submit(&prompt(family, 20 + 20 * family as usize), 0, |submit| {
            submit.max_tokens = 40;
            submit.stop_token_ids.clear();
            submit.prompt_logprobs = Some(1);
        })
    };
    let keys = [scored(&mut world, 0), scored(&mut world, 1)];
    for key in keys {
        steps(&mut world, 400, finished(key));
    }
    assert!(world.stat("preemptions") > 0);
    world.finish();
    assert_eq!(keys.map(|key| world.streams[&key].prompt_logprobs.len()), [19, 39]);
}

#[test]
fn tokens_that_are_certain_are_not_sampled() {
    for depth in 0..2 {
        for logprobs in [None, Some(0)] {
            let mut world = World::new(&Setup { depth, ..roomy() });
            world.submit(&prompt(0, 6), 0, |submit| {
                (submit.max_tokens, submit.grammar, submit.logprobs) = (40, Some(vec![22]), logprobs);
                submit.min_tokens = 22;
            });
            let (mut sampled, mut computed) = (0, Vec::new());
            while world.running() {
                world.drain();
                let rows = world.plan();
                if rows > 0 {
                    let record = world.planner.steps.in_flight().back().unwrap();
                    sampled += record.num_logits;
                    computed.push(record.rows[0].count);
                }
                if world.device.results.len() > depth || rows == 0 {
                    world.commit();
                }
                world.read();
            }
            world.verify();
            // They are at 4, at 10 and 11, and at 16; at 5 and 17 it is not known in time. A step ahead samples the first of
            // each in vain, and once more behind the end.
            let expected = if logprobs.is_some() { (0, 22 + depth) } else { (4, 22 - 4 + 4 * depth) };
            assert_eq!((world.stat("certain_tokens"), sampled), expected, "{depth} {computed:?}");
            assert_eq!(computed.iter().skip(1).sum::<u32>() as usize, 21 + depth, "no token twice");
        }
    }
}

#[test]
fn a_row_whose_logits_are_changed_outside_tells_its_tokens_and_may_fail() {
    let mut world = World::new(&Setup { depth: 0, prefill_chunk: 4, drafts: Drafts::Host(4), ..roomy() });
    let key = world.submit(&prompt(0, 10), 0, |submit| {
        submit.logits_processors = Some(b"{}".to_vec());
        submit.stop_token_ids.clear();
    });
    let other = world.submit(&prompt(1, 3), 0, |submit| submit.stop_token_ids.clear());
    world.drain();
    let mut told = Vec::new();
    for _ in 0..6 {
        world.plan();
        let (rows, left) = world.planner.processed_rows().unwrap();
        assert!(rows.len() <= 1 && left.is_empty());
        for row in rows {
            assert_eq!((row.key, row.prompt_length), (key, 10));
            assert_eq!(row.asked.as_deref(), told.is_empty().then_some(&b"{}"[..]));
            told.extend(row.tokens);
        }
        world.commit();
    }
    world.read();
    assert_eq!(told.len(), 10 + world.streams[&key].tokens.len() - 1);
    assert_eq!(told, world.expected[&key].tokens[..told.len()]);
    world.plan();
    let (rows, _) = world.planner.processed_rows().unwrap();
    let result = world.device.results.pop_front().unwrap();
    let failed = [(rows[0].logit, "so".to_owned())];
    let results =
        StepResults { sampled: &result.tokens, counts: &result.counts, failed: &failed, ..tokens(&[], &[]) };
    assert_eq!(world.planner.commit(&mut world.kv, &results, 1).unwrap(), 1);
    world.planner.send().unwrap();
    world.cut.insert(key, FinishReason::Error);
    world.finish();
    assert_eq!(world.streams[&other].finish, Some(FinishReason::Length));
    // Who has left is told with the next row.
    let third = world.submit(&prompt(2, 3), 0, |submit| submit.logits_processors = Some(Vec::new()));
    world.drain();
    world.plan();
    let (rows, left) = world.planner.processed_rows().unwrap();
    assert_eq!((rows[0].key, left), (third, vec![key]));
    world.finish();
}
