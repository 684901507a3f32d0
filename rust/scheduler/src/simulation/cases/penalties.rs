//! Penalties of a step's rows.

use pyengine_kernels_cpu::sampler::SamplingRow;

use super::super::extensions::ask;
use super::super::model::prompt;
use super::super::outcome::Outcome;
use super::super::penalties::PenaltyRules;
use super::super::random::{Event, happen};
use super::super::setup::{Setup, roomy};
use super::super::world::World;
use super::{finished, steps};
use crate::features::penalties::PenaltiesExtension;
use pyengine_messages::{FinishReason, Message};

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
            let bad_words = vec![vec![1, 2]];
            ask(submit, &PenaltiesExtension { bad_words, ..PenaltiesExtension::default() });
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
    assert!(world.planner.fill_late(bytes).is_err(), "a step before it is in flight");
    world.commit();
    world.post(&Message::Abort(key));
    world.drain();
    // SAFETY: as above.
    let bytes = unsafe { world.words.align_to_mut::<u8>() }.1;
    world.planner.fill_late(bytes).unwrap();
    assert_eq!(world.planner.layout.view(bytes).unwrap().header.num_penalties, 0);
    let outcome = Outcome { tokens: vec![1], counts: vec![1], ..Outcome::default() };
    world.commit_results(&outcome, 0, &[]).unwrap();
    world.finish();
}
