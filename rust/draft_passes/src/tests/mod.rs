//! A draft model whose tokens are a hash of its cache: whatever is scheduled, every draft must be its token after
//! the whole sequence, and every cell is written once in a pass.

mod device;
mod windows;
mod world;

use proptest::prelude::*;

use super::*;
use world::{World, one_group};

const BLOCK: usize = 4;
const BLOCKS: usize = 64;
const ROWS: usize = 4;
const VOCABULARY: u64 = 50;

#[test]
fn a_sequence_that_goes_on_takes_a_token_a_pass() {
    let mut world = World::new(200);
    world.enter(10, false, 3);
    world.step(&[(10, 0, true)], 0).unwrap();
    assert_eq!(world.passed, 0, "a sequence without drafts costs nothing");
    world.step(&[(1, 3, true)], 1).unwrap();
    assert_eq!((world.passed, world.computed), (3, 11 + 2), "the prompt and the token after it, two drafts");
    world.step(&[(1, 3, true)], 3).unwrap();
    assert_eq!((world.passed, world.computed), (6, 13 + 3));
    world.step(&[(1, 3, true)], 0).unwrap();
    assert_eq!((world.passed, world.computed), (9, 16 + 4), "the last draft was right and is caught up with");
    world.step(&[(1, 2, false)], 0).unwrap();
    world.step(&[(1, 0, false)], 0).unwrap();
    world.step(&[(1, 1, true)], 0).unwrap();
    assert_eq!((world.passed, world.computed), (10, 20 + 3), "and with those it was not asked for");
}

#[test]
fn what_the_device_feeds_is_learned_when_it_comes_back() {
    let mut world = World::new(200);
    world.fed = true;
    world.enter(10, false, 3);
    (0..4).for_each(|_| world.step(&[(10, 0, true)], 0).unwrap());
    world.step(&[(1, 3, true)], 1).unwrap();
    assert_eq!((world.passed, world.computed), (3, 14 + 2), "three tokens were fed before");
    world.step(&[(1, 3, true)], 3).unwrap();
    world.step(&[(1, 0, true)], 0).unwrap();
    world.step(&[(1, 2, true)], 2).unwrap();
    assert_eq!((world.passed, world.computed), (8, 16 + 3 + 4), "with the last draft, and the token fed");
}

#[test]
fn a_shared_prompt_is_computed_once() {
    let mut world = World::new(200);
    world.enter(17, false, 3);
    world.step(&[(17, 0, true)], 0).unwrap();
    world.enter(17, true, 3);
    world.step(&[(9, 1, true)], 0).unwrap();
    assert_eq!((world.passed, world.computed), (1, 18 + 1));
}

#[test]
fn what_does_not_fit_is_refused() {
    let layout = |tokens, rows| StepLayout::new(tokens, rows, 8, 0, 64).unwrap();
    let new = |pass, pages| DraftPasses::new(layout(16, 4), pass, 64, &one_group(pages));
    assert!(new(layout(16, 4), 8).is_ok());
    assert!(new(layout(16, 3), 8).is_err());
    assert!(new(layout(3, 4), 8).is_err());
    assert!(new(layout(16, 4), usize::MAX / 2).is_err());
}

proptest! {
    #[test]
    fn every_draft_is_what_the_model_says_after_its_sequence(
        pass_tokens in prop::sample::select(vec![ROWS, 7, 16, 200]),
        turns in prop::collection::vec(
            (0u8..10, 1usize..40, any::<bool>(), any::<u64>(),
             prop::collection::vec((1usize..12, 0usize..5, any::<bool>()), 1..5), 0usize..5),
            1..60,
        ),
        fed in prop::bool::weighted(1.0 / 3.0),
    ) {
        let mut world = World::new(pass_tokens);
        world.fed = fed;
        for (kind, length, shares, seed, grants, right) in turns {
            if kind < 3 && world.sequences.len() < ROWS {
                world.enter(length, shares, seed);
            } else if kind == 3 && !world.sequences.is_empty() {
                world.leave(seed as usize % world.sequences.len());
            }
            world.step(&grants, right).unwrap();
        }
    }
}
