//! Steps that follow drafts whose number is open.

use super::super::extensions::ask;
use super::super::model::prompt;
use super::super::random::{Event, happen};
use super::super::setup::{Drafts, Setup, roomy};
use super::super::world::World;
use crate::features::processors::LogitsProcessorsExtension;
use pyengine_kv_allocator::Group;

#[test]
fn a_request_preempted_while_drafts_are_verified_goes_on_where_it_was() {
    // A request without drafts goes on beside drafts of the worst class that are verified: the block that it lacks is
    // taken from that class.
    let mut preempted = 0;
    for (num_blocks, steps) in (6..16).flat_map(|blocks| (1..25).map(move |steps| (blocks, steps))) {
        let tight = Setup { num_blocks, drafts: Drafts::Ahead(3), horizon: 0, max_context: 40, ..roomy() };
        let mut world = World::new(&tight);
        let mut submit = |class: i32, processed: bool| {
            world.submit(&prompt(class as u64, 4), 0, |submit| {
                submit.max_tokens = 20;
                submit.priority = class;
                submit.stop_token_ids.clear();
                if processed {
                    ask(submit, &LogitsProcessorsExtension { arguments: b"{}".to_vec() });
                }
            })
        };
        submit(0, true); // no drafts
        submit(1, false);
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
    let windows = vec![Group::FULL, Group::window(9, 1)];
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
