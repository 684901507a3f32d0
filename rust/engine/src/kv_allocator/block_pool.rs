//! The state of every KV block: whether it is held, and in which order unheld ones are evicted.
//!
//! ```text
//!                take                    hold (a prefix matched)
//!    ┌──────┐ ────────────► ┌──────┐ ◄──────────────────────────── ┌────────┐
//!    │ free │               │ held │                               │ cached │
//!    └──────┘ ◄──────────── └──────┘ ────────────────────────────► └────────┘
//!       ▲     last release,           last release, in the tree        │
//!       │     in no tree                                               │
//!       └──────────────────────────────────────────────────────────────┘
//!                     leaves the tree (evicted, forgotten)
//!
//!    free:    a stack of ids
//!    cached:  sentinel ⇄ oldest ⇄ … ⇄ newest ⇄ sentinel   (doubly linked through the block array)
//! ```
//!
//! Taking, holding, releasing and leaving the tree are O(1) a block and allocate nothing: the stack has room
//! for every block from the start, and the list is made of indices in the block array.

use crate::error::{Error, Result};

/// Names a block: its index in the KV cache.
pub type BlockId = u32;

/// A node of the prefix tree, as the pool remembers it: which node a block stands in.
pub(super) type Place = u32;

/// The place of a block that no tree knows.
pub(super) const NOWHERE: Place = u32::MAX;

/// How many blocks are in each state; the sum is the number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Blocks with no content worth keeping.
    pub free: usize,
    /// Blocks that the prefix tree knows and no sequence holds.
    pub cached: usize,
    /// Blocks that at least one sequence holds.
    pub held: usize,
}

/// One block, 16 bytes: four share a cache line.
#[derive(Clone, Copy)]
struct Block {
    /// How many sequences hold it.
    holds: u32,
    /// The tree node that it stands in, or [`NOWHERE`].
    place: Place,
    /// Neighbours in the list of cached blocks; meaningless in any other state.
    older: BlockId,
    newer: BlockId,
}

/// Reference counts, the free stack and the list of cached blocks.
pub(super) struct BlockPool {
    /// One entry a block, and the sentinel of the cached list at the end.
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    cached: usize,
}

impl BlockPool {
    pub(super) fn new(num_blocks: usize) -> Result<Self> {
        if num_blocks == 0 || num_blocks >= NOWHERE as usize {
            return Err(Error::InvalidArgument(format!(
                "num_blocks must be between 1 and {}, not {num_blocks}",
                NOWHERE - 1
            )));
        }
        let sentinel = num_blocks as BlockId;
        let block = Block { holds: 0, place: NOWHERE, older: sentinel, newer: sentinel };
        Ok(Self {
            blocks: vec![block; num_blocks + 1],
            // The stack gives out the lowest ids first: neighbours in a sequence are neighbours in memory.
            free: (0..sentinel).rev().collect(),
            cached: 0,
        })
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.blocks.len() - 1
    }

    pub(super) fn counts(&self) -> Counts {
        let free = self.free.len();
        Counts { free, cached: self.cached, held: self.num_blocks() - free - self.cached }
    }

    /// The tree node that `block` stands in.
    pub(super) fn place(&self, block: BlockId) -> Place {
        self.blocks[block as usize].place
    }

    /// The cached block that has been unheld for the longest time.
    pub(super) fn oldest_cached(&self) -> Option<BlockId> {
        let sentinel = self.num_blocks();
        let oldest = self.blocks[sentinel].newer;
        (oldest as usize != sentinel).then_some(oldest)
    }

    /// Moves `count` free blocks to held and appends them to `out`. There must be that many.
    pub(super) fn take(&mut self, count: usize, out: &mut Vec<BlockId>) {
        let kept = self.free.len() - count;
        for &block in self.free[kept..].iter().rev() {
            self.blocks[block as usize].holds = 1;
            out.push(block);
        }
        self.free.truncate(kept);
    }

    /// Holds a block of the tree once more; a cached one leaves the list.
    pub(super) fn hold(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        entry.holds += 1;
        if entry.holds == 1 {
            self.unlink(block);
        }
    }

    /// Lets go of a block once; the last to do so makes it cached or free. Panics if it is not held.
    pub(super) fn release(&mut self, block: BlockId) {
        let entry = self.entry(block);
        assert!(entry.holds > 0, "release of KV block {block}, which is not held");
        entry.holds -= 1;
        if entry.holds > 0 {
            return;
        }
        if entry.place == NOWHERE {
            self.free.push(block);
        } else {
            self.link_newest(block);
        }
    }

    /// The tree takes up `blocks` in the node `place`. Panics, with nothing changed, if one of them is not
    /// held or in the tree already.
    pub(super) fn enter_tree(&mut self, blocks: &[BlockId], place: Place) {
        for (i, &block) in blocks.iter().enumerate() {
            let entry = self.entry(block);
            if entry.holds > 0 && entry.place == NOWHERE {
                entry.place = place;
                continue;
            }
            let why = if entry.holds == 0 { "which is not held" } else { "which is in the tree already" };
            blocks[..i].iter().for_each(|&entered| self.set_place(entered, NOWHERE));
            panic!("insert of KV block {block}, {why}");
        }
    }

    /// The tree has moved `block` to the node `place`.
    pub(super) fn set_place(&mut self, block: BlockId, place: Place) {
        self.blocks[block as usize].place = place;
    }

    /// The tree has forgotten `block`: a cached one becomes free, a held one stays with its holders.
    pub(super) fn leave_tree(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        entry.place = NOWHERE;
        if entry.holds == 0 {
            self.unlink(block);
            self.free.push(block);
        }
    }

    fn entry(&mut self, block: BlockId) -> &mut Block {
        let num_blocks = self.num_blocks();
        assert!((block as usize) < num_blocks, "KV block {block} does not exist: there are {num_blocks}");
        &mut self.blocks[block as usize]
    }

    fn link_newest(&mut self, block: BlockId) {
        let sentinel = self.num_blocks();
        let newest = self.blocks[sentinel].older;
        self.blocks[newest as usize].newer = block;
        self.blocks[sentinel].older = block;
        let entry = &mut self.blocks[block as usize];
        (entry.older, entry.newer) = (newest, sentinel as BlockId);
        self.cached += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { older, newer, .. } = self.blocks[block as usize];
        self.blocks[older as usize].newer = newer;
        self.blocks[newer as usize].older = older;
        self.cached -= 1;
    }

    /// Every block is in exactly one state, and list, stack and counts agree.
    pub(super) fn check(&self) -> Result<()> {
        let num_blocks = self.num_blocks();
        let broken = |what: String| Err(Error::Invariant(what));
        let mut seen = vec![false; num_blocks];
        for &block in &self.free {
            let entry = &self.blocks[block as usize];
            if std::mem::replace(&mut seen[block as usize], true) {
                return broken(format!("block {block} is free twice"));
            }
            if entry.holds != 0 || entry.place != NOWHERE {
                return broken(format!("block {block} is free, but held or in the tree"));
            }
        }
        let (mut cached, mut older) = (0, num_blocks as BlockId);
        let mut block = self.blocks[num_blocks].newer;
        while block as usize != num_blocks {
            let entry = &self.blocks[block as usize];
            if std::mem::replace(&mut seen[block as usize], true) {
                return broken(format!("block {block} is cached twice, or cached and free"));
            }
            if entry.holds != 0 || entry.place == NOWHERE || entry.older != older {
                return broken(format!("block {block} is cached, but held, in no tree or wrongly linked"));
            }
            (cached, older, block) = (cached + 1, block, entry.newer);
        }
        if cached != self.cached || self.blocks[num_blocks].older != older {
            return broken(format!("{cached} blocks are in the cached list, {} were counted", self.cached));
        }
        match seen.iter().zip(&self.blocks).position(|(&seen, entry)| !seen && entry.holds == 0) {
            Some(lost) => broken(format!("block {lost} is neither free nor cached nor held")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_round() {
        let mut pool = BlockPool::new(4).unwrap();
        let mut blocks = Vec::new();
        pool.take(3, &mut blocks);
        assert_eq!(blocks, [0, 1, 2]);
        pool.set_place(0, 7);
        pool.set_place(1, 7);
        pool.hold(1);
        for block in [2, 1, 0] {
            pool.release(block);
        }
        pool.check().unwrap();
        assert_eq!(pool.counts(), Counts { free: 2, cached: 1, held: 1 });
        pool.release(1);
        assert_eq!(pool.oldest_cached(), Some(0));
        pool.hold(0);
        assert_eq!(pool.oldest_cached(), Some(1));
        pool.leave_tree(0);
        pool.leave_tree(1);
        pool.release(0);
        pool.check().unwrap();
        assert_eq!(pool.counts(), Counts { free: 4, cached: 0, held: 0 });
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(BlockPool::new(0).is_err());
        assert!(BlockPool::new(u32::MAX as usize).is_err());
    }

    #[test]
    fn check_finds_what_is_broken() {
        let mut pool = BlockPool::new(2).unwrap();
        pool.take(1, &mut Vec::new());
        pool.blocks[0].holds = 0;
        assert!(pool.check().unwrap_err().to_string().contains("neither free nor cached nor held"));
        pool.free.push(0);
        pool.check().unwrap();
        pool.free.push(0);
        assert!(pool.check().unwrap_err().to_string().contains("free twice"));
    }
}
