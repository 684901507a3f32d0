//! States case by case; `groups` plays them at random.

use crate::{Group, Holding, KvAllocator, SlotId};

const BLOCK: usize = 2;

/// One page a block, and states of four pages.
fn allocator(pages: usize) -> KvAllocator {
    KvAllocator::with_groups(pages, BLOCK, true, &[Group::FULL, Group::state(4)]).unwrap()
}

/// A sequence that has computed `tokens`, with snapshots behind the first `borders` blocks.
fn computed(kv: &mut KvAllocator, tokens: &[u32], borders: &[usize]) -> Holding {
    let mut held = Holding::default();
    kv.begin(&mut held, 0, tokens, usize::MAX);
    kv.extend(&mut held, tokens.len().div_ceil(BLOCK), 0).unwrap();
    held.take_restore().into_iter().for_each(|slot| kv.release_snapshot(slot));
    kv.insert(0, tokens, held.blocks());
    for &blocks in borders {
        snapshot(kv, &tokens[..blocks * BLOCK], 0).unwrap();
    }
    kv.check().unwrap();
    held
}

fn snapshot(kv: &mut KvAllocator, tokens: &[u32], chances: u8) -> Option<SlotId> {
    let slot = kv.snapshot(0, tokens, chances)?;
    kv.release_snapshot(slot);
    Some(slot)
}

fn found(kv: &KvAllocator, tokens: &[u32]) -> usize {
    kv.check().unwrap();
    kv.peek_prefix(0, tokens, usize::MAX)
}

fn evict_pages(kv: &mut KvAllocator, free: usize) {
    let (mut held, more) = (Holding::default(), free.saturating_sub(4));
    kv.extend(&mut held, more, 0).unwrap();
    kv.let_go(&mut held);
}

#[test]
fn a_hit_ends_at_the_last_snapshot() {
    let mut kv = allocator(32);
    let tokens: Vec<u32> = (0..12).collect();
    let mut first = computed(&mut kv, &tokens, &[2, 4]);
    assert_eq!(found(&kv, &tokens), 4);
    assert_eq!(found(&kv, &tokens[..7]), 2);
    assert_eq!(found(&kv, &tokens[..3]), 0);
    assert_eq!(kv.snapshot(0, &tokens[..4], 0), None, "there is one already");
    assert_eq!(kv.snapshot(0, &[7, 7], 0), None, "nothing is known of these tokens");
    let mut second = Holding::default();
    assert_eq!(kv.begin(&mut second, 0, &tokens, usize::MAX), 4);
    kv.extend(&mut second, 6, 0).unwrap();
    assert!(second.state().is_some() && second.state() != first.state());
    let restored = second.take_restore().unwrap();
    assert!(Some(restored) != second.state());
    kv.release_snapshot(restored);
    kv.let_go(&mut first);
    kv.let_go(&mut second);
    assert_eq!(kv.reset_prefix_cache(), 6 + 8);
    assert_eq!(kv.counts().free, 32);
}

#[test]
fn a_sequence_keeps_what_it_has_if_there_is_no_slot() {
    let mut kv = allocator(12);
    let mut holdings: Vec<Holding> = (0..2).map(|at| computed(&mut kv, &[at, at], &[])).collect();
    assert_eq!(kv.counts().held, 2 * 5);
    let mut third = Holding::default();
    assert!(kv.extend(&mut third, 1, 0).is_err());
    assert_eq!(third, Holding::default());
    kv.check().unwrap();
    kv.let_go(&mut holdings[0]);
    kv.extend(&mut third, 1, 0).unwrap();
    kv.check().unwrap();
}

#[test]
fn the_last_snapshot_and_the_forks_outlive_the_middle_ones() {
    let mut kv = allocator(48);
    let tokens: Vec<u32> = (0..12).collect();
    let fork = [&tokens[..4], &[70, 71, 72, 73]].concat();
    let mut first = computed(&mut kv, &tokens, &[2, 3, 4, 6]);
    let mut second = computed(&mut kv, &fork, &[]);
    kv.let_go(&mut second);
    kv.let_go(&mut first);
    // Two of four have to go: behind the third block, and behind the fourth.
    let free = kv.counts().free;
    evict_pages(&mut kv, free + 8);
    assert_eq!([6, 5, 4, 3, 2].map(|blocks| found(&kv, &tokens[..blocks * BLOCK])), [6, 2, 2, 2, 2]);
}

#[test]
fn chances_pass_a_snapshot_over() {
    let mut kv = allocator(16);
    let mut held = computed(&mut kv, &[1, 1, 2, 2], &[]);
    snapshot(&mut kv, &[1, 1], 1).unwrap();
    snapshot(&mut kv, &[1, 1, 2, 2], 0).unwrap();
    // The older one has a chance, so that the other one goes for a sequence's slot.
    let mut other = Holding::default();
    kv.extend(&mut other, 1, 0).unwrap();
    assert_eq!(found(&kv, &[1, 1, 2, 2]), 1);
    kv.let_go(&mut other);
    kv.let_go(&mut held);
}

#[test]
fn a_kept_snapshot_is_not_evicted_until_its_sequence_lets_go() {
    let mut kv = allocator(16);
    let mut held = computed(&mut kv, &[1, 1, 2, 2], &[1, 2]);
    kv.keep_snapshot(&mut held, 2);
    let mut other = Holding::default();
    kv.extend(&mut other, 1, 0).unwrap();
    assert_eq!([found(&kv, &[1, 1]), found(&kv, &[1, 1, 2, 2])], [0, 2]);
    let mut third = Holding::default();
    assert!(kv.extend(&mut third, 1, 0).is_err(), "the other extents are in use");
    kv.keep_snapshot(&mut held, 0);
    kv.extend(&mut third, 1, 0).unwrap();
    assert_eq!((found(&kv, &[1, 1, 2, 2]), kv.num_snapshots()), (0, 0));
    [other, third, held].iter_mut().for_each(|held| kv.let_go(held));
    kv.check().unwrap();
    assert_eq!(kv.counts().held, 0);
}

#[test]
fn a_forgotten_snapshot_stays_with_the_sequence_that_is_restored_from_it() {
    let mut kv = allocator(16);
    let tokens = [1, 1, 2, 2];
    let mut first = computed(&mut kv, &tokens, &[2]);
    kv.let_go(&mut first);
    let mut second = Holding::default();
    assert_eq!(kv.begin(&mut second, 0, &tokens, usize::MAX), 2);
    kv.forget(second.blocks());
    assert_eq!(found(&kv, &tokens), 0);
    kv.extend(&mut second, 3, 0).unwrap();
    assert_eq!(kv.counts().held, 3 + 4 + 4);
    let restored = second.take_restore().unwrap();
    kv.release_snapshot(restored);
    assert_eq!(kv.counts().held, 3 + 4);
    kv.let_go(&mut second);
    assert_eq!(kv.counts().free, 16);
}

#[test]
fn a_sequence_without_another_slot_goes_on_in_its_snapshots() {
    let mut kv = allocator(10);
    let tokens: Vec<u32> = (0..8).collect();
    let mut first = computed(&mut kv, &tokens[..2], &[1]);
    kv.let_go(&mut first);
    let mut second = Holding::default();
    assert_eq!(kv.begin(&mut second, 0, &tokens, usize::MAX), 1);
    assert_eq!(kv.demand(&second, 12), 5);
    kv.extend(&mut second, 6, 0).unwrap();
    assert!(second.state().is_some());
    assert_eq!(second.take_restore(), None);
    assert_eq!(kv.counts().held, 10);
    kv.let_go(&mut second);
    assert_eq!(found(&kv, &tokens), 0);
}

#[test]
fn the_snapshot_of_a_failed_step_is_forgotten() {
    let mut kv = allocator(16);
    let mut held = computed(&mut kv, &[1, 1, 2, 2], &[]);
    let slot = snapshot(&mut kv, &[1, 1], 0).unwrap();
    assert_eq!(found(&kv, &[1, 1]), 1);
    kv.forget_snapshot(slot);
    assert_eq!((found(&kv, &[1, 1]), kv.known_prefix(0, &[1, 1], 1)), (0, 1));
    kv.forget_snapshot(held.state().unwrap());
    kv.check().unwrap();
    kv.let_go(&mut held);
}

#[test]
fn groups_of_states_are_checked() {
    let new = |groups: &[Group]| KvAllocator::with_groups(8, BLOCK, true, groups).is_ok();
    assert!(new(&[Group::FULL, Group::state(7)]));
    assert!(!new(&[Group::FULL, Group::state(8)]), "no room for a page beside a state");
    assert!(!new(&[Group::FULL, Group::state(0)]));
    assert!(!new(&[Group::FULL, Group::state(2), Group::state(2)]));
    assert!(new(&[Group::full(0), Group::state(2)]), "nothing but states");
}
