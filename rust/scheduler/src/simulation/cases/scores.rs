//! Log-probabilities, of answers and of prompts.

use super::super::extensions::{ask, asked};
use super::super::model::prompt;
use super::super::setup::{Setup, roomy};
use super::super::world::World;
use super::{finished, steps};
use crate::features::logprobs::LogProbsExtension;
use crate::features::prompt_logprobs::PromptLogProbsExtension;
use pyengine_messages::FinishReason;

#[test]
fn more_log_probabilities_than_a_step_has_are_refused() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let key = world.submit(&prompt(1, 6), 0, |submit| ask(submit, &LogProbsExtension { count: 21 }));
    world.cut.insert(key, FinishReason::Error);
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
            ask(submit, &PromptLogProbsExtension { count: 2, first: from, following: Vec::new() });
        });
        let known = cached(&world);
        steps(&mut world, 20, finished(key));
        assert_eq!(cached(&world) - known, saved, "from {from}");
        assert_eq!(world.streams[&key].prompt_logprobs.len(), 29 - from as usize);
    }
    assert_eq!(cached(&world) - before, 36);
    for (count, first) in [(21, 0), (0, 30)] {
        let key = world.submit(&prompt(1, 30), 0, |submit| {
            ask(submit, &PromptLogProbsExtension { count, first, following: Vec::new() });
        });
        world.cut.insert(key, FinishReason::Error);
    }
    world.drain();
    world.read();
    assert!(world.streams.values().all(|stream| stream.finish.is_some()));
    // What was refused was told nothing, and is not looked at below.
    world.expected.retain(|_, expected| {
        let wanted: Option<PromptLogProbsExtension> = asked(&expected.submit);
        wanted.is_none_or(|wanted| wanted.count <= 2 && wanted.first < 30)
    });
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
            ask(submit, &PromptLogProbsExtension { count: 1, first: 0, following: Vec::new() });
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
