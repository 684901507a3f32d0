//! The only owner of KV blocks: reference counts, the prefix tree, eviction.
//!
//! ```text
//!                match_prefix, allocate                    release
//!   sequence ──────────────────────────────► KvAllocator ◄───────── sequence
//!                                              │      │
//!                          holds of each block │      │ which tokens it holds
//!                                     ┌────────▼──┐ ┌─▼──────────┐
//!                                     │ BlockPool │◄┤ PrefixTree │  insert: a block gets its node
//!                                     └───────────┘ └────────────┘  forget: it loses it
//! ```
//!
//! Cached blocks are those that the tree knows and no sequence holds; they are evicted in the order in which they
//! became so. A release goes from the last block to the first, so that within a path the tail is older than
//! the head, and eviction takes paths from their ends without looking for them: O(1) a block.
//!
//! One case breaks that order. Two sequences compute the same prefix at once; the first one's blocks enter the
//! tree, the second one's stay private, but what the second computes *after* them goes below the first one's.
//! When the first is done its blocks are cached although something below is held. Then evicting one of them
//! also forgets what lies below it: held blocks stay with their holders, and enter the tree again at their next
//! `insert`. So every block that no sequence holds can be had, whatever the tree looks like.
//!
//! `allocate` and `release` are O(1) a block and allocate no memory beyond what `out` needs;
//! `match_prefix` is O(depth), and so is `insert`, but for a sequence that grows: O(new blocks).

mod block_pool;
mod prefix_tree;

pub use block_pool::{BlockId, Counts};

use crate::error::{Error, Result};
use block_pool::{BlockPool, NOWHERE};
use prefix_tree::PrefixTree;

/// Owner of all KV blocks. Releasing a block that is not held is a bug of the caller and panics.
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

    /// Remembers the full blocks of `tokens`; returns how many were new.
    ///
    /// `blocks` are their ids (more are ignored), all held by the caller. Where the tree already has a block
    /// for the same tokens the caller's block stays private. Panics if a new block is not held or is
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

    /// Lets go of each of `blocks`, last first; one that is not held any more is cached if the tree knows it, else
    /// free. Panics if one is not held.
    pub fn release(&mut self, blocks: &[BlockId]) {
        blocks.iter().rev().for_each(|&block| self.pool.release(block));
    }

    /// Forgets every cached block; returns how many. Held blocks stay with their holders and remain known, as far as what
    /// lies above them does. O(cached blocks).
    pub fn reset_prefix_cache(&mut self) -> usize {
        let cached = self.pool.counts().cached;
        while self.pool.oldest_cached().is_some() {
            self.evict_oldest();
        }
        cached
    }

    /// How many blocks are in each state, in O(1).
    pub fn counts(&self) -> Counts {
        self.pool.counts()
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
mod tests;
