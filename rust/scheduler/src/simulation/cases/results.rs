//! What a step brings back, and what it took.

use super::super::super::DeviceTimes;
use super::super::extensions::ask;
use super::super::model::prompt;
use super::super::setup::{Drafts, Setup, roomy};
use super::super::world::World;
use crate::features::grammars::GrammarExtension;
use crate::features::logprobs::LogProbsExtension;
use crate::features::processors::{LogitsProcessorsExtension, Processors};
use crate::step::buffers::NO_TOKEN;
use pyengine_messages::{FinishReason, Message};

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
fn results_of_another_step_are_refused_and_nothing_is_lost() {
    let mut world = World::new(&roomy());
    world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    world.plan();
    let mut outcome = world.device.results[0].clone();
    assert!(world.commit_results(&outcome, 1, &[]).is_err(), "it has another number");
    outcome.counts[0] = 2;
    assert!(world.commit_results(&outcome, 0, &[]).is_err(), "the row has no drafts");
    outcome.counts[0] = -1;
    assert!(world.commit_results(&outcome, 0, &[]).is_err(), "no device has written it");
    world.finish();
}

#[test]
fn a_planned_step_has_no_results_yet() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    world.submit(&prompt(0, 6), 0, |submit| ask(submit, &LogProbsExtension { count: 2 }));
    world.drain();
    let layout = world.planner.layout;
    // SAFETY: every byte of a u64 is a u8.
    let bytes = unsafe { world.words.align_to_mut::<u8>() }.1;
    bytes.fill(7);
    assert_eq!(world.planner.plan(&mut world.kv, bytes, 1).unwrap(), 1);
    assert!(world.planner.commit(&mut world.kv, bytes, &[], 1).is_err(), "no device has run it");
    let results = layout.view(bytes).unwrap();
    assert_eq!((results.sampled_tokens[0], results.sampled_counts[0]), (NO_TOKEN, NO_TOKEN));
    assert!(results.sampled_logprobs[0].is_nan() && results.top_logprobs[0].is_nan());
    assert_eq!(DeviceTimes::read(results.device_times), None);
    world.planner.abort_all(&mut world.kv).unwrap();
}

#[test]
fn that_a_device_is_idle_counts_where_it_waits_for_the_next_plan() {
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
        let counts = world.planner.steps.proposer().counts_idle_time();
        world.commit();
        world.read();
        counts
    };
    submit(&mut world, 0, 100);
    assert_eq!([0; 3].map(|_| step(&mut world)), [false, true, true], "there was no step before");
    submit(&mut world, 1, 1);
    assert_eq!([0; 3].map(|_| step(&mut world)), [true, false, true], "it ended with its prompt");
    let short = submit(&mut world, 2, 8);
    while world.streams.get(&short).is_none_or(|stream| stream.finish.is_none()) {
        step(&mut world);
    }
    assert_eq!([0; 2].map(|_| step(&mut world)), [false, true], "a request ended");
    let aborted = submit(&mut world, 3, 50);
    assert_eq!([0; 2].map(|_| step(&mut world)), [true, true]);
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
fn tokens_that_are_certain_are_not_sampled() {
    for depth in 0..2 {
        for logprobs in [None, Some(0)] {
            let mut world = World::new(&Setup { depth, ..roomy() });
            world.submit(&prompt(0, 6), 0, |submit| {
                submit.max_tokens = 40;
                ask(submit, &GrammarExtension { description: vec![22], close: false });
                if let Some(count) = logprobs {
                    ask(submit, &LogProbsExtension { count });
                }
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
        ask(submit, &LogitsProcessorsExtension { arguments: b"{}".to_vec() });
        submit.stop_token_ids.clear();
    });
    let other = world.submit(&prompt(1, 3), 0, |submit| submit.stop_token_ids.clear());
    world.drain();
    let mut told = Vec::new();
    for _ in 0..6 {
        world.plan();
        let (rows, left) = world.planner.feature::<Processors>().take();
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
    let (rows, _) = world.planner.feature::<Processors>().take();
    let result = world.device.results.pop_front().unwrap();
    let failed = [(rows[0].logit, "so".to_owned())];
    assert_eq!(world.commit_results(&result, 0, &failed).unwrap(), 1);
    world.planner.send().unwrap();
    world.cut.insert(key, FinishReason::Error);
    world.finish();
    assert_eq!(world.streams[&other].finish, Some(FinishReason::Length));
    // Who has left is told with the next row.
    let third = world.submit(&prompt(2, 3), 0, |submit| {
        ask(submit, &LogitsProcessorsExtension { arguments: Vec::new() });
    });
    world.drain();
    world.plan();
    let (rows, left) = world.planner.feature::<Processors>().take();
    assert_eq!((rows[0].key, left), (third, vec![key]));
    world.finish();
}
