//! The only owner of KV blocks: reference counts, the prefix tree, eviction.
//!
//! ```text
//!             match_prefix, allocate, fork                 release
//!   sequence ──────────────────────────────► KvAllocator ◄───────── sequence
//!                                              │      │
//!                            who holds a block │      │ which tokens it holds
//!                                     ┌────────▼──┐ ┌─▼──────────┐
//!                                     │ BlockPool │◄┤ PrefixTree │  insert: a block gets its node
//!                                     └───────────┘ └────────────┘  forget: it loses it
//! ```
//!
//! Cached blocks are those that the tree knows and nobody holds; they are evicted in the order in which they
//! became so. A release goes from the last block to the first, so that within a path the tail is older than
//! the head, and eviction takes paths from their ends without looking for them: O(1) a block.
//!
//! One case breaks that order. Two sequences compute the same prefix at once; the first one's blocks enter the
//! tree, the second one's stay private, but what the second computes *after* them goes below the first one's.
//! When the first is done its blocks are cached although something below is held. Then evicting one of them
//! also forgets what lies below it: held blocks stay with their holders, and enter the tree again at their next
//! `insert`. So every block that no sequence holds can be had, whatever the tree looks like.
//!
//! `allocate`, `fork` and `release` are O(1) a block and allocate no memory beyond what `out` needs;
//! `match_prefix` is O(depth), and so is `insert`, but for a sequence that grows: O(new blocks).

mod block_pool;
mod prefix_tree;

pub use block_pool::Counts;

use crate::error::{Error, Result};
use block_pool::{BlockPool, NOWHERE};
use prefix_tree::PrefixTree;

/// Names a block: its index in the KV cache.
pub type BlockId = u32;

/// Owner of all KV blocks. Releasing or forking what nobody holds is a bug of the caller and panics.
pub struct KvAllocator {
    pool: BlockPool,
    /// None when prefixes are not cached.
    tree: Option<PrefixTree>,
    block_size: usize,
}

impl KvAllocator {
    /// An allocator of `num_blocks` blocks of `block_size` tokens, all free.
    pub fn new(num_blocks: usize, block_size: usize, prefix_cache: bool) -> Result<Self> {
        if block_size == 0 {
            return Err(Error::InvalidArgument("block_size must be at least 1".into()));
        }
        let pool = BlockPool::new(num_blocks)?;
        let tree = prefix_cache.then(|| PrefixTree::new(num_blocks, block_size)).transpose()?;
        Ok(Self { pool, tree, block_size })
    }

    /// How many blocks there are.
    pub fn num_blocks(&self) -> usize {
        self.pool.num_blocks()
    }

    /// Tokens a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Holds the blocks of the longest cached prefix of `tokens` (whole blocks, at most `max_blocks`) and
    /// appends them to `out`; returns how many.
    pub fn match_prefix(
        &mut self,
        salt: u64,
        tokens: &[u32],
        max_blocks: usize,
        out: &mut Vec<BlockId>,
    ) -> usize {
        self.match_further(salt, tokens, &[], max_blocks, out)
    }

    /// The same for a sequence that goes on: what the tree knows behind `held`, the blocks of its first tokens.
    /// O(blocks that are found) if it knows the last of these.
    pub fn match_further(
        &mut self,
        salt: u64,
        tokens: &[u32],
        held: &[BlockId],
        max_blocks: usize,
        out: &mut Vec<BlockId>,
    ) -> usize {
        let Some(tree) = &self.tree else { return 0 };
        let first = out.len();
        tree.find_further(salt, tokens, held, max_blocks, &self.pool, |run| out.extend_from_slice(run));
        out[first..].iter().for_each(|&block| self.pool.hold(block));
        out.len() - first
    }

    /// How many leading blocks of `tokens` are cached, without holding them or touching their age.
    pub fn peek_prefix(&self, salt: u64, tokens: &[u32], max_blocks: usize) -> usize {
        self.tree.as_ref().map_or(0, |tree| tree.find(salt, tokens, max_blocks, |_| {}))
    }

    /// Holds `count` fresh blocks and appends them to `out`; evicts cached blocks, least recently used first.
    /// All or nothing.
    pub fn allocate(&mut self, count: usize, out: &mut Vec<BlockId>) -> Result<()> {
        let available = self.available();
        if count > available {
            return Err(Error::OutOfBlocks { needed: count, available });
        }
        while self.pool.counts().free < count {
            self.evict_oldest();
        }
        self.pool.take(count, out);
        Ok(())
    }

    /// Blocks that can be allocated now: free and cached.
    pub fn available(&self) -> usize {
        let counts = self.pool.counts();
        counts.free + counts.cached
    }

    /// Holds each of `blocks` once more. Panics if nobody holds one.
    pub fn fork(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|&block| self.pool.fork(block));
    }

    /// Remembers the full blocks of `tokens`; returns how many were new.
    ///
    /// `blocks` are their ids (more are ignored), all held by the caller. Where the tree already has a block
    /// for the same tokens the caller's block stays private. Panics if a new block is held by nobody or is
    /// remembered for other tokens.
    pub fn insert(&mut self, salt: u64, tokens: &[u32], blocks: &[BlockId]) -> usize {
        let full = tokens.len() / self.block_size;
        assert!(blocks.len() >= full, "insert of {full} full KV blocks, but only {} are named", blocks.len());
        match &mut self.tree {
            Some(tree) => tree.insert(salt, tokens, &blocks[..full], &mut self.pool),
            None => 0,
        }
    }

    /// Forgets those of `blocks` that are known, and all that lies below them: they do not hold what was said. Held
    /// blocks stay with their holders.
    pub fn forget(&mut self, blocks: &[BlockId]) {
        let Some(tree) = &mut self.tree else { return };
        for &block in blocks.iter().rev() {
            if self.pool.place(block) != NOWHERE {
                tree.forget(block, &mut self.pool);
            }
        }
    }

    /// Lets go of each of `blocks`, last first; who is held by nobody then is cached if the tree knows it, else
    /// free. Panics if nobody holds one.
    pub fn release(&mut self, blocks: &[BlockId]) {
        blocks.iter().rev().for_each(|&block| self.pool.release(block));
    }

    /// How many blocks are in each state, in O(1).
    pub fn counts(&self) -> Counts {
        self.pool.counts()
    }

    /// Forgets all cached prefixes that nobody holds; returns how many blocks became free.
    pub fn reset_prefix_cache(&mut self) -> usize {
        let cached = self.pool.counts().cached;
        while self.pool.counts().cached > 0 {
            self.evict_oldest();
        }
        cached
    }

    /// Checks every invariant, in O(blocks); names the one that is broken.
    pub fn check(&self) -> Result<()> {
        self.pool.check()?;
        self.tree.as_ref().map_or(Ok(()), |tree| tree.check(&self.pool))
    }

    fn evict_oldest(&mut self) {
        let oldest = self.pool.oldest_cached();
        let (Some(block), Some(tree)) = (oldest, &mut self.tree) else {
            unreachable!("asked only when a block is cached")
        };
        tree.forget(block, &mut self.pool);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

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

    /// What a request does: its blocks are held, and all its full ones are known.
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
        assert_eq!(kv.reset_prefix_cache(), 5);
        assert_eq!(counts(&kv), (16, 0, 0));
        assert_eq!(kv.peek_prefix(0, &[1, 2], usize::MAX), 0);
    }

    #[test]
    fn the_oldest_path_goes_first_and_from_its_end() {
        let mut kv = KvAllocator::new(6, 1, true).unwrap();
        let first = admitted(&mut kv, 0, &[1, 2, 3]);
        let second = admitted(&mut kv, 0, &[7, 8, 9]);
        kv.release(&second);
        kv.release(&first);
        let third = matched(&mut kv, 0, &[7]); // 7 is young again, what follows it is not
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
        assert_eq!(kv.reset_prefix_cache(), 0);
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
        panics(&mut kv, "release of KV block 7, which nobody holds", |kv| kv.release(&[7]));
        panics(&mut kv, "which nobody holds", |kv| kv.release(&cached));
        panics(&mut kv, "fork of KV block", |kv| kv.fork(&cached));
        panics(&mut kv, "KV block 8 does not exist", |kv| kv.release(&[8]));
        panics(&mut kv, "2 full KV blocks, but only 1", |kv| _ = kv.insert(0, &[1, 9], &blocks[..1]));
        panics(&mut kv, "in the tree already for other", |kv| _ = kv.insert(1, &[1, 2], &blocks));
        panics(&mut kv, "in the tree already for other", |kv| _ = kv.insert(0, &[5, 6], &blocks));
        panics(&mut kv, "in the tree already", |kv| _ = kv.insert(0, &[5, 6], &[fresh[0], fresh[0]]));
        panics(&mut kv, "which nobody holds", |kv| _ = kv.insert(0, &[1, 7], &[blocks[0], 7]));
        assert_eq!(counts(&kv), (3, 1, 4));
    }

    /// A sequence as its owner sees it.
    #[derive(Clone)]
    struct Sequence {
        salt: u64,
        tokens: Vec<u32>,
        blocks: Vec<BlockId>,
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Match and allocate; insert too if `remember`.
        Admit {
            salt: u64,
            tokens: Vec<u32>,
            max_blocks: usize,
            remember: bool,
        },
        /// More tokens for a sequence.
        Extend {
            which: usize,
            tokens: Vec<u32>,
            remember: bool,
        },
        /// A sequence takes from the tree what is known behind its first blocks.
        Further {
            which: usize,
            kept: usize,
        },
        /// The last blocks of a sequence were never computed.
        Forget {
            which: usize,
            blocks: usize,
        },
        /// A second sequence with the full blocks of the first.
        Fork {
            which: usize,
        },
        /// A sequence ends.
        Release {
            which: usize,
        },
        /// A sequence loses its last blocks.
        RollBack {
            which: usize,
            blocks: usize,
        },
        /// Somebody needs blocks for a moment.
        Pressure {
            count: usize,
        },
        Reset,
    }

    const TOTAL: usize = 24;
    const BLOCK: usize = 2;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let tokens = |most| prop::collection::vec(0..2u32, 0..=most);
        let step = prop_oneof![
            6 => (0..2u64, tokens(16), prop_oneof![Just(usize::MAX), 0..4usize], prop::bool::weighted(0.7))
                .prop_map(|(salt, tokens, max_blocks, remember)| Step::Admit { salt, tokens, max_blocks, remember }),
            4 => (any::<usize>(), tokens(6), any::<bool>())
                .prop_map(|(which, tokens, remember)| Step::Extend { which, tokens, remember }),
            3 => (any::<usize>(), 0..8usize).prop_map(|(which, kept)| Step::Further { which, kept }),
            1 => (any::<usize>(), 1..4usize).prop_map(|(which, blocks)| Step::Forget { which, blocks }),
            2 => any::<usize>().prop_map(|which| Step::Fork { which }),
            5 => any::<usize>().prop_map(|which| Step::Release { which }),
            3 => (any::<usize>(), 1..4usize).prop_map(|(which, blocks)| Step::RollBack { which, blocks }),
            3 => (0..=TOTAL).prop_map(|count| Step::Pressure { count }),
            1 => Just(Step::Reset),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// The allocator as it is explained: maps, sets and a list, all of them searched from end to end.
    struct Model {
        /// (salt, all tokens up to the end of a block) → the block.
        known: BTreeMap<(u64, Vec<u32>), BlockId>,
        holds: [u32; TOTAL],
        free: BTreeSet<BlockId>,
        /// Oldest first.
        cached: Vec<BlockId>,
    }

    impl Model {
        fn new() -> Self {
            let free = (0..TOTAL as BlockId).collect();
            Self { known: BTreeMap::new(), holds: [0; TOTAL], free, cached: Vec::new() }
        }

        fn prefixes(salt: u64, tokens: &[u32]) -> impl Iterator<Item = (u64, Vec<u32>)> {
            (1..=tokens.len() / BLOCK).map(move |blocks| (salt, tokens[..blocks * BLOCK].to_vec()))
        }

        fn match_prefix(&mut self, salt: u64, tokens: &[u32], max_blocks: usize) -> Vec<BlockId> {
            self.match_further(salt, tokens, 0, max_blocks)
        }

        fn match_further(
            &mut self,
            salt: u64,
            tokens: &[u32],
            kept: usize,
            max_blocks: usize,
        ) -> Vec<BlockId> {
            let keys = Self::prefixes(salt, tokens).take(max_blocks).skip(kept);
            let found: Vec<BlockId> = keys.map_while(|key| self.known.get(&key).copied()).collect();
            self.hold(&found);
            self.cached.retain(|block| !found.contains(block));
            found
        }

        fn hold(&mut self, blocks: &[BlockId]) {
            blocks.iter().for_each(|&block| self.holds[block as usize] += 1);
        }

        fn insert(&mut self, salt: u64, tokens: &[u32], blocks: &[BlockId]) -> usize {
            let before = self.known.len();
            for (key, &block) in Self::prefixes(salt, tokens).zip(blocks) {
                self.known.entry(key).or_insert(block);
            }
            self.known.len() - before
        }

        fn release(&mut self, blocks: &[BlockId]) {
            for &block in blocks.iter().rev() {
                self.holds[block as usize] -= 1;
                if self.holds[block as usize] > 0 {
                } else if self.known.values().any(|&known| known == block) {
                    self.cached.push(block);
                } else {
                    self.free.insert(block);
                }
            }
        }

        fn evict_until(&mut self, free: usize) {
            while self.free.len() < free {
                self.forget(self.cached[0]);
            }
        }

        fn forget(&mut self, block: BlockId) {
            let Some((salt, top)) =
                self.known.iter().find(|&(_, &known)| known == block).map(|(key, _)| key.clone())
            else {
                return;
            };
            let below = |key: &(u64, Vec<u32>)| key.0 == salt && key.1.starts_with(&top);
            let gone: Vec<BlockId> =
                self.known.iter().filter(|&(key, _)| below(key)).map(|(_, &block)| block).collect();
            self.known.retain(|key, _| !below(key));
            self.cached.retain(|block| !gone.contains(block));
            self.free.extend(gone.iter().filter(|&&block| self.holds[block as usize] == 0));
        }

        /// Takes the blocks that the allocator chose, which must have been free or the next to be evicted.
        fn allocate(&mut self, count: usize, chosen: &[BlockId]) {
            assert_eq!(chosen.len(), count);
            self.evict_until(count);
            for block in chosen {
                assert!(self.free.remove(block), "block {block} was not free");
            }
            self.hold(chosen);
        }

        fn available(&self) -> usize {
            self.free.len() + self.cached.len()
        }
    }

    /// The allocator and its model, and the sequences that live on them.
    struct Pair {
        kv: KvAllocator,
        model: Model,
        sequences: Vec<Sequence>,
    }

    impl Pair {
        /// Grows the block table of `sequence` to its tokens; false, and nothing changed, if there is no room.
        fn grow(&mut self, sequence: &mut Sequence, remember: bool) -> bool {
            let count = sequence.tokens.len().div_ceil(BLOCK) - sequence.blocks.len();
            let available = self.model.available();
            let from = sequence.blocks.len();
            match self.kv.allocate(count, &mut sequence.blocks) {
                Ok(()) => self.model.allocate(count, &sequence.blocks[from..]),
                Err(error) => {
                    assert_eq!(error, Error::OutOfBlocks { needed: count, available });
                    assert!(count > available);
                    return false;
                }
            }
            if remember {
                let Sequence { salt, tokens, blocks } = &*sequence;
                assert_eq!(self.kv.insert(*salt, tokens, blocks), self.model.insert(*salt, tokens, blocks));
            }
            true
        }

        fn release(&mut self, blocks: &[BlockId]) {
            self.kv.release(blocks);
            self.model.release(blocks);
        }

        fn pick(&mut self, which: usize) -> Option<Sequence> {
            let count = self.sequences.len();
            (count > 0).then(|| self.sequences.swap_remove(which % count))
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Admit { salt, tokens, max_blocks, remember } => {
                    let mut blocks = Vec::new();
                    let peeked = self.kv.peek_prefix(salt, &tokens, max_blocks);
                    assert_eq!(self.kv.match_prefix(salt, &tokens, max_blocks, &mut blocks), peeked);
                    assert_eq!(blocks, self.model.match_prefix(salt, &tokens, max_blocks));
                    let mut sequence = Sequence { salt, tokens, blocks };
                    match self.grow(&mut sequence, remember) {
                        true => self.sequences.push(sequence),
                        false => self.release(&sequence.blocks),
                    }
                }
                Step::Extend { which, tokens, remember } => {
                    let Some(mut sequence) = self.pick(which) else { return };
                    let before = sequence.tokens.len();
                    sequence.tokens.extend(tokens);
                    if !self.grow(&mut sequence, remember) {
                        sequence.tokens.truncate(before);
                    }
                    self.sequences.push(sequence);
                }
                Step::Further { which, kept } => {
                    let Some(mut sequence) = self.pick(which) else { return };
                    let Sequence { salt, tokens, blocks } = &mut sequence;
                    let kept = kept.min(blocks.len());
                    let mut found = Vec::new();
                    let held = &blocks[..kept];
                    assert_eq!(
                        self.kv.match_further(*salt, tokens, held, usize::MAX, &mut found),
                        found.len()
                    );
                    assert_eq!(found, self.model.match_further(*salt, tokens, kept, usize::MAX));
                    let own: Vec<BlockId> = blocks.splice(kept..kept + found.len(), found).collect();
                    self.release(&own);
                    self.sequences.push(sequence);
                }
                Step::Forget { which, blocks } => {
                    let Some(sequence) = self.pick(which) else { return };
                    let wrong = &sequence.blocks[sequence.blocks.len().saturating_sub(blocks)..];
                    self.kv.forget(wrong);
                    wrong.iter().for_each(|&block| self.model.forget(block));
                    self.sequences.push(sequence);
                }
                Step::Fork { which } => {
                    let Some(sequence) = self.pick(which) else { return };
                    let mut fork = sequence.clone();
                    fork.blocks.truncate(fork.tokens.len() / BLOCK);
                    fork.tokens.truncate(fork.blocks.len() * BLOCK);
                    self.kv.fork(&fork.blocks);
                    self.model.hold(&fork.blocks);
                    self.sequences.extend([sequence, fork]);
                }
                Step::Release { which } => {
                    let Some(sequence) = self.pick(which) else { return };
                    self.release(&sequence.blocks);
                }
                Step::RollBack { which, blocks } => {
                    let Some(mut sequence) = self.pick(which) else { return };
                    let kept = sequence.blocks.len().saturating_sub(blocks);
                    let tail = sequence.blocks.split_off(kept);
                    sequence.tokens.truncate(kept * BLOCK);
                    self.release(&tail);
                    self.sequences.push(sequence);
                }
                Step::Pressure { count } => {
                    let mut sequence =
                        Sequence { salt: 0, tokens: vec![0; count * BLOCK], blocks: Vec::new() };
                    if self.grow(&mut sequence, false) {
                        self.release(&sequence.blocks);
                    }
                }
                Step::Reset => {
                    let cached = self.model.cached.len();
                    assert_eq!(self.kv.reset_prefix_cache(), cached);
                    self.model.evict_until(self.model.available());
                }
            }
        }

        fn compare(&self) {
            let Counts { free, cached, held } = self.kv.counts();
            self.kv.check().unwrap();
            assert_eq!(free + cached + held, TOTAL);
            assert_eq!((free, cached), (self.model.free.len(), self.model.cached.len()));
            let holders: BTreeSet<BlockId> =
                self.sequences.iter().flat_map(|sequence| sequence.blocks.iter().copied()).collect();
            assert_eq!(held, holders.len());
            for (salt, tokens) in self.model.known.keys() {
                assert_eq!(self.kv.peek_prefix(*salt, tokens, usize::MAX), tokens.len() / BLOCK);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_does_what_the_model_does(steps in steps()) {
            let kv = KvAllocator::new(TOTAL, BLOCK, true).unwrap();
            let mut pair = Pair { kv, model: Model::new(), sequences: Vec::new() };
            for step in steps {
                pair.step(step);
                pair.compare();
            }
            while let Some(sequence) = pair.pick(0) {
                pair.release(&sequence.blocks);
                pair.compare();
            }
            // The order of age, one block at a time.
            for count in 1..=TOTAL {
                pair.step(Step::Pressure { count });
                pair.compare();
            }
            prop_assert_eq!(pair.kv.counts(), Counts { free: TOTAL, cached: 0, held: 0 });
        }
    }
}
