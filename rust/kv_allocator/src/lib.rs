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
//! **Groups.** Layers of one [`Kind`] are a group: they keep the same, for the same time. All groups take pages of one
//! size from one pool (`pages`), so that free, cached and held pages are all pages, and so are their bytes. A block is
//! some tokens of a sequence, and has an entry for each group that keeps something of tokens. A sequence holds what it
//! has in the first group, which keeps all tokens, until it ends, and in the group of a window while the window is on
//! it; [`Holding`] is what one sequence holds. A model without layers that see all tokens has a first group without
//! pages, which remembers the tokens.
//!
//! ```text
//!   tokens      0 ................ first of the window ........ computed ....... known
//!   Full        [ held                                                        held ]   keys and values
//!   Latent      [ held                                     ][ taken chunk by chunk ]   or those of the first group
//!   Window      [ cached or gone ][ held                   ][ taken chunk by chunk ]
//!   State                  * snapshot    * snapshot         # one slot a sequence      of many pages: `states`
//! ```
//!
//! A prefix is found up to the last border of blocks where the first group has all blocks before it, each window those
//! of the tokens that the next query sees, and states a snapshot. An entry of a window that no sequence holds is evicted by itself; when
//! its sequence ends it becomes as new as its tokens, unless no border of the tree is within a window behind it
//! ([`KvAllocator::cut`]). So prompts are found as often as without windows, in the same bytes.
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
mod extents;
mod holding;
mod ids;
mod pages;
mod prefix_tree;
mod states;

pub use block_pool::Counts;
pub use holding::Holding;
pub use ids::{BlockId, PageId, SlotId};
pub use pages::{Group, Kind};

use block_pool::{BlockPool, Cached, NOWHERE};
use prefix_tree::PrefixTree;
use pyengine_base::error::{Error, Result};

/// Owner of all KV blocks. Releasing a block that is not held is a bug of the caller and panics.
pub struct KvAllocator {
    pool: BlockPool,
    /// None when prefixes are not cached.
    tree: Option<PrefixTree>,
    block_size: usize,
    /// Those that keep something of tokens; the first keeps all.
    groups: Vec<Group>,
}

impl KvAllocator {
    /// An allocator of `num_blocks` blocks of `block_size` tokens, all free, for a model without windows.
    pub fn new(num_blocks: usize, block_size: usize, prefix_cache: bool) -> Result<Self> {
        Self::with_groups(num_blocks, block_size, prefix_cache, &[Group::FULL])
    }

    /// The same of `num_pages` pages for the blocks of `groups`. The first keeps all tokens, and may have no tables; one
    /// can be of states.
    pub fn with_groups(
        num_pages: usize,
        block_size: usize,
        prefix_cache: bool,
        groups: &[Group],
    ) -> Result<Self> {
        if block_size == 0 {
            return Err(Error::InvalidArgument("block_size must be at least 1".into()));
        }
        let (groups, state) = Group::apart(groups)?;
        let pool = BlockPool::new(num_pages, &groups, state)?;
        let tree = prefix_cache.then(|| PrefixTree::new(pool.num_blocks(), block_size)).transpose()?;
        Ok(Self { pool, tree, block_size, groups })
    }

    /// Whether a block is its page: there is one group, with one table, and no state.
    pub fn blocks_are_pages(&self) -> bool {
        self.pool.is_plain()
    }

    /// Whether prefixes are cached.
    pub fn caches_prefixes(&self) -> bool {
        self.tree.is_some()
    }

    /// How many pages there are. With one group of one table a page is a block.
    pub fn num_pages(&self) -> usize {
        self.pool.num_pages()
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
        if !self.is_found_everywhere() {
            out.truncate(first + self.usable(held, &out[first..]));
        }
        out[first..].iter().for_each(|&block| self.pool.hold(block, 0));
        out.len() - first
    }

    /// How many leading blocks of `tokens` are cached, without holding them or touching their age.
    pub fn peek_prefix(&self, salt: u64, tokens: &[u32], max_blocks: usize) -> usize {
        let Some(tree) = &self.tree else { return 0 };
        if self.is_found_everywhere() {
            return tree.find(salt, tokens, max_blocks, |_| {});
        }
        let mut found = Vec::new();
        tree.find(salt, tokens, max_blocks, |run| found.extend_from_slice(run));
        self.usable(&[], &found)
    }

    /// Holds `count` fresh blocks in the first group and appends them to `out`; evicts cached blocks, least recently used first.
    /// All or nothing.
    pub fn allocate(&mut self, count: usize, out: &mut Vec<BlockId>) -> Result<()> {
        self.make_room(count, count * self.pool.pages_of_block(0))?;
        self.pool.take(count, out);
        Ok(())
    }

    /// Whether a prefix can be gone on from wherever the tree knows it.
    fn is_found_everywhere(&self) -> bool {
        !self.pool.has_more_groups() && self.pool.state_pages() == 0
    }

    /// Evicts until these numbers of blocks and pages are free; nothing if that cannot be.
    fn make_room(&mut self, blocks: usize, pages: usize) -> Result<()> {
        self.check_room(blocks, pages)?;
        while self.pool.free_pages() < pages || self.pool.free_blocks() < blocks {
            self.evict_oldest();
        }
        Ok(())
    }

    /// An error unless these numbers of blocks and pages are free or cached.
    fn check_room(&self, blocks: usize, pages: usize) -> Result<()> {
        let available = self.available();
        let nameable = self.pool.free_blocks() + self.pool.cached_blocks();
        if pages > available || blocks > nameable {
            let available = if pages > available { available } else { nameable };
            return Err(Error::OutOfBlocks { needed: pages.max(blocks), available });
        }
        Ok(())
    }

    /// Pages that can be had now: free and cached.
    pub fn available(&self) -> usize {
        let counts = self.pool.counts();
        counts.free + counts.cached
    }

    /// The page of `block` in a table; tables are counted through all groups.
    #[inline]
    pub fn page(&self, block: BlockId, table: usize) -> PageId {
        self.pool.page(block, table)
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
        blocks.iter().rev().for_each(|&block| self.pool.release(block, 0));
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
        match self.pool.oldest_cached().expect("asked only when something is cached") {
            Cached::Block(block, group) => self.evict(block, group),
            Cached::State(slot) => self.evict_snapshot(slot),
        }
    }

    /// Evicts what a block has in a group, which is cached.
    fn evict(&mut self, block: BlockId, group: usize) {
        match (&mut self.tree, group) {
            (Some(tree), 0) => tree.forget(block, &mut self.pool),
            (Some(_), group) => self.pool.evict(block, group),
            (None, _) => unreachable!("only what a tree knows is cached"),
        }
    }
}

#[cfg(test)]
mod tests;
