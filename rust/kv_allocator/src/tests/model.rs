//! The allocator against a model that looks at every known prefix for everything: whatever sequences do, both
//! know the same prefixes, count the same blocks and evict in the same order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::{BlockId, Counts, KvAllocator};
use pyengine_base::error::Error;

/// A sequence as its owner sees it.
struct Sequence {
    salt: u64,
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Match and allocate; insert too if `remember`.
    Admit { salt: u64, tokens: Vec<u32>, max_blocks: usize, remember: bool },
    /// More tokens for a sequence.
    Extend { which: usize, tokens: Vec<u32>, remember: bool },
    /// A sequence takes from the tree what is known behind its first blocks.
    Further { which: usize, kept: usize },
    /// The last blocks of a sequence were never computed.
    Forget { which: usize, blocks: usize },
    /// A sequence ends.
    Release { which: usize },
    /// A sequence loses its last blocks.
    RollBack { which: usize, blocks: usize },
    /// Blocks are allocated and released at once.
    Pressure { count: usize },
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
        5 => any::<usize>().prop_map(|which| Step::Release { which }),
        3 => (any::<usize>(), 1..4usize).prop_map(|(which, blocks)| Step::RollBack { which, blocks }),
        3 => (0..=TOTAL).prop_map(|count| Step::Pressure { count }),
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

    fn match_further(&mut self, salt: u64, tokens: &[u32], kept: usize, max_blocks: usize) -> Vec<BlockId> {
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
                assert_eq!(self.kv.match_further(*salt, tokens, held, usize::MAX, &mut found), found.len());
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
                let mut sequence = Sequence { salt: 0, tokens: vec![0; count * BLOCK], blocks: Vec::new() };
                if self.grow(&mut sequence, false) {
                    self.release(&sequence.blocks);
                }
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
