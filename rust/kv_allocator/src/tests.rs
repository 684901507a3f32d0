//! The allocator case by case; `model` plays it at random against a simple model.

mod groups;
mod hits;
mod model;
mod states;

use super::*;

fn matched(kv: &mut KvAllocator, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
    let mut out = Vec::new();
    let count = kv.match_prefix(salt, tokens, usize::MAX, &mut out);
    assert_eq!(count, out.len());
    out
}

fn allocated(kv: &mut KvAllocator, count: usize) -> Vec<BlockId> {
    let mut out = Vec::new();
    kv.allocate(count, &mut out).unwrap();
    out
}

/// Admits a request: its blocks are held, and the tree knows all full ones.
fn admitted(kv: &mut KvAllocator, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
    let mut blocks = matched(kv, salt, tokens);
    let missing = tokens.len().div_ceil(kv.block_size()) - blocks.len();
    kv.allocate(missing, &mut blocks).unwrap();
    kv.insert(salt, tokens, &blocks);
    blocks
}

fn counts(kv: &KvAllocator) -> (usize, usize, usize) {
    kv.check().unwrap();
    let Counts { free, cached, held } = kv.counts();
    (free, cached, held)
}

#[test]
fn a_prefix_is_shared_and_salts_are_not() {
    let mut kv = KvAllocator::new(16, 2, true).unwrap();
    let first = admitted(&mut kv, 0, &[1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(counts(&kv), (12, 0, 4));
    assert_eq!(kv.peek_prefix(0, &[1, 2, 3, 4, 5, 6, 7], usize::MAX), 3);
    assert_eq!(kv.peek_prefix(0, &[1, 2, 3, 4, 5, 6, 7], 2), 2);
    assert_eq!(kv.peek_prefix(1, &[1, 2, 3, 4], usize::MAX), 0);
    // Another end: the run is split after the first block.
    let second = admitted(&mut kv, 0, &[1, 2, 9, 9]);
    assert_eq!(second[0], first[0]);
    assert_eq!(counts(&kv), (11, 0, 5));
    assert_eq!(matched(&mut kv, 0, &[1, 2, 3, 4, 8, 8]), first[..2]);
    assert_eq!(matched(&mut kv, 0, &[1, 2, 9, 9]), second);
    let other_salt = admitted(&mut kv, 1, &[1, 2]);
    assert_eq!(matched(&mut kv, 1, &[1, 2, 3, 4]), other_salt);
    for blocks in [&first[..], &first[..2], &second, &second, &other_salt, &other_salt] {
        kv.release(blocks);
    }
    assert_eq!(counts(&kv), (11, 5, 0));
    assert_eq!(allocated(&mut kv, 16).len(), 16, "cached blocks are evicted for new ones");
    assert_eq!(counts(&kv), (0, 0, 16));
    assert_eq!(kv.peek_prefix(0, &[1, 2], usize::MAX), 0);
}

#[test]
fn the_oldest_path_goes_first_and_from_its_end() {
    let mut kv = KvAllocator::new(6, 1, true).unwrap();
    let first = admitted(&mut kv, 0, &[1, 2, 3]);
    let second = admitted(&mut kv, 0, &[7, 8, 9]);
    kv.release(&second);
    kv.release(&first);
    let third = matched(&mut kv, 0, &[7]); // 7 becomes the newest, the blocks after it do not
    kv.release(&third);
    let mut known = Vec::new();
    for _ in 0..6 {
        allocated(&mut kv, 1);
        known.push((kv.peek_prefix(0, &[7, 8, 9], 3), kv.peek_prefix(0, &[1, 2, 3], 3)));
        kv.check().unwrap();
    }
    assert_eq!(known, [(2, 3), (1, 3), (1, 2), (1, 1), (1, 0), (0, 0)]);
}

#[test]
fn a_reset_forgets_what_is_cached_and_leaves_what_is_held() {
    let mut kv = KvAllocator::new(6, 2, true).unwrap();
    let ended = admitted(&mut kv, 0, &[1, 2, 3, 4]);
    kv.insert(0, &[1, 2, 3, 4], &ended);
    let other = admitted(&mut kv, 0, &[9, 9]);
    kv.insert(0, &[9, 9], &other);
    kv.release(&ended);
    assert_eq!(counts(&kv), (3, 2, 1));
    assert_eq!(kv.reset_prefix_cache(), 2);
    assert_eq!(counts(&kv), (5, 0, 1));
    assert_eq!(kv.peek_prefix(0, &[1, 2, 3, 4], 9), 0);
    assert_eq!(kv.peek_prefix(0, &[9, 9], 9), 1);
    kv.check().unwrap();
    kv.release(&other);
    assert_eq!(kv.reset_prefix_cache(), 1);
    assert_eq!(counts(&kv), (6, 0, 0));
}

#[test]
fn allocation_is_all_or_nothing() {
    let mut kv = KvAllocator::new(4, 2, true).unwrap();
    let held = admitted(&mut kv, 0, &[1, 2]);
    let cached = admitted(&mut kv, 0, &[3, 4]);
    kv.release(&cached);
    let mut out = Vec::new();
    assert_eq!(kv.allocate(4, &mut out), Err(Error::OutOfBlocks { needed: 4, available: 3 }));
    assert!(out.is_empty());
    assert_eq!(counts(&kv), (2, 1, 1));
    kv.allocate(3, &mut out).unwrap();
    assert!(!out.contains(&held[0]));
    assert_eq!(counts(&kv), (0, 0, 4));
}

#[test]
fn blocks_computed_twice_stay_private_and_what_follows_them_is_known() {
    let mut kv = KvAllocator::new(6, 1, true).unwrap();
    let (one, two) = (allocated(&mut kv, 2), allocated(&mut kv, 3));
    assert_eq!(kv.insert(0, &[1, 2], &one), 2);
    assert_eq!(kv.insert(0, &[1, 2, 3], &two), 1);
    let path = [one[0], one[1], two[2]];
    assert_eq!(matched(&mut kv, 0, &[1, 2, 3]), path);
    kv.release(&path);
    kv.release(&one);
    assert_eq!(counts(&kv), (1, 2, 3));
    // The middle of the path is evicted although its end is held: the end stays with its holder.
    let fresh = allocated(&mut kv, 2);
    assert!(!fresh.contains(&two[2]));
    assert_eq!(kv.peek_prefix(0, &[1, 2, 3], 3), 1);
    assert_eq!(counts(&kv), (0, 1, 5));
    assert_eq!(kv.insert(0, &[1, 2, 3], &two), 2);
    kv.release(&two);
    kv.release(&fresh);
    assert_eq!(counts(&kv), (3, 3, 0));
    assert_eq!(matched(&mut kv, 0, &[1, 2, 3]), [one[0], two[1], two[2]]);
}

#[test]
fn without_a_prefix_cache_nothing_is_remembered() {
    let mut kv = KvAllocator::new(4, 2, false).unwrap();
    let blocks = allocated(&mut kv, 2);
    assert_eq!(kv.insert(0, &[1, 2, 3, 4], &blocks), 0);
    assert_eq!(kv.peek_prefix(0, &[1, 2, 3, 4], 2), 0);
    assert!(matched(&mut kv, 0, &[1, 2, 3, 4]).is_empty());
    kv.release(&blocks);
    assert_eq!(counts(&kv), (4, 0, 0));
}

#[test]
fn block_sizes_out_of_range_are_refused() {
    assert!(KvAllocator::new(4, 0, true).is_err());
    assert!(KvAllocator::new(4, usize::MAX / 8, true).is_err());
}

/// Runs `bug`, which must panic with `message`, and checks that the allocator is sound afterwards.
fn panics(kv: &mut KvAllocator, message: &str, bug: impl FnOnce(&mut KvAllocator)) {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bug(kv))).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("a message");
    assert!(text.contains(message), "{text}");
    kv.check().unwrap();
}

#[test]
fn bugs_of_the_caller_panic_and_break_nothing() {
    let mut kv = KvAllocator::new(8, 1, true).unwrap();
    let blocks = admitted(&mut kv, 0, &[1, 2]);
    let fresh = allocated(&mut kv, 2);
    let cached = admitted(&mut kv, 0, &[3]);
    kv.release(&cached);
    panics(&mut kv, "release of KV block 7, which is not held", |kv| kv.release(&[7]));
    panics(&mut kv, "which is not held", |kv| kv.release(&cached));
    panics(&mut kv, "KV block 8 does not exist", |kv| kv.release(&[8]));
    panics(&mut kv, "2 full KV blocks, but only 1", |kv| _ = kv.insert(0, &[1, 9], &blocks[..1]));
    panics(&mut kv, "in the tree already for other", |kv| _ = kv.insert(1, &[1, 2], &blocks));
    panics(&mut kv, "in the tree already for other", |kv| _ = kv.insert(0, &[5, 6], &blocks));
    panics(&mut kv, "in the tree already", |kv| _ = kv.insert(0, &[5, 6], &[fresh[0], fresh[0]]));
    panics(&mut kv, "which is not held", |kv| _ = kv.insert(0, &[1, 7], &[blocks[0], 7]));
    assert_eq!(counts(&kv), (3, 1, 4));
}
