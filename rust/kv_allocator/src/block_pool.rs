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
//! A block has an *entry* for each group of layers, which has pages of its own and is held by itself. The first
//! group's is the block: it is there as long as the block lives, and held while any other is. An entry of a window
//! may lose its pages before that: it is released when the window has moved on, and then evicted alone.
//!
//! A *slot* of a state has an entry, too, behind those of all blocks, and the same life: a running sequence holds the
//! slot of its own; a snapshot is known by the block that it follows, and cached in the same list (`states`).
//!
//! Taking, holding, releasing and leaving the tree are O(groups) a block and allocate nothing: the stack has room
//! for every block from the start, and the list is made of indices in the array of entries.

mod invariants;
mod snapshots;
mod states;

use super::ids::{BlockId, PageId, SlotId};
use super::pages::{Group, Pages};
use pyengine_base::error::{Error, Result};
use snapshots::Snapshots;

/// A node of the prefix tree, as the pool remembers it: which node a block stands in.
pub(super) type Place = u32;

/// The place of a block that no tree knows.
pub(super) const NOWHERE: Place = u32::MAX;

/// How many pages are in each state; the sum is the number of pages, and a page is as many bytes in every group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Pages with no content worth keeping.
    pub free: usize,
    /// Pages of entries that the prefix tree knows and no sequence holds.
    pub cached: usize,
    /// Pages that at least one sequence holds.
    pub held: usize,
}

/// Names an entry: `block * groups + group`, and behind those of all blocks one for each slot.
type EntryId = u32;

/// What is cached by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cached {
    /// A block in a group.
    Block(BlockId, usize),
    /// The snapshot of a state.
    State(SlotId),
}

/// A block in one group, 16 bytes: four share a cache line.
#[derive(Clone, Copy)]
struct Entry {
    /// How many sequences hold it.
    holds: u32,
    /// The tree node that its block stands in, or [`NOWHERE`]; of a slot, whether it is a snapshot's: [`KNOWN`].
    place: Place,
    /// Neighbours in the list of cached entries; meaningless in any other state.
    older: EntryId,
    newer: EntryId,
}

/// Reference counts, the free stack and the list of cached entries.
pub(super) struct BlockPool {
    groups: usize,
    num_blocks: usize,
    /// \[blocks, groups\], those of slots, and the sentinel of the cached list at the end.
    entries: Vec<Entry>,
    free: Vec<BlockId>,
    /// Pages of cached entries.
    cached: usize,
    /// Cached entries of the first group.
    cached_blocks: usize,
    pages: Pages,
    snapshots: Snapshots,
}

impl BlockPool {
    /// A pool for groups of tokens, and states of `state` pages if that is not 0.
    pub(super) fn new(num_pages: usize, groups: &[Group], state: usize) -> Result<Self> {
        let (pages, num_blocks) = Pages::new(num_pages, groups, state)?;
        let slots = if state == 0 { 0 } else { pages.extents().slots() };
        let entries = num_blocks.checked_mul(groups.len()).map(|entries| entries + slots);
        let Some(count) = entries.filter(|&entries| entries < NOWHERE as usize) else {
            return Err(Error::InvalidArgument(format!("{num_blocks} blocks are too many for {groups:?}")));
        };
        let sentinel = count as EntryId;
        let entry = Entry { holds: 0, place: NOWHERE, older: sentinel, newer: sentinel };
        Ok(Self {
            groups: groups.len(),
            num_blocks,
            entries: vec![entry; count + 1],
            // The stack gives out the lowest ids first: neighbours in a sequence are neighbours in memory.
            free: (0..num_blocks as BlockId).rev().collect(),
            cached: 0,
            cached_blocks: 0,
            pages,
            snapshots: Snapshots::new(num_blocks, slots, state),
        })
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    pub(super) fn num_pages(&self) -> usize {
        self.pages.num_pages()
    }

    /// Whether a block is its page.
    pub(super) fn is_plain(&self) -> bool {
        self.pages.is_plain()
    }

    pub(super) fn counts(&self) -> Counts {
        let free = self.free_pages();
        Counts { free, cached: self.cached, held: self.num_pages() - free - self.cached }
    }

    pub(super) fn free_pages(&self) -> usize {
        if self.pages.is_plain() { self.free.len() } else { self.pages.free() }
    }

    /// Blocks that nothing is known of, and those that have only what is cached.
    pub(super) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    pub(super) fn cached_blocks(&self) -> usize {
        self.cached_blocks
    }

    /// Pages of a block in a group.
    pub(super) fn pages_of_block(&self, group: usize) -> usize {
        self.pages.of_block(group)
    }

    /// The page of a block in a table.
    #[inline]
    pub(super) fn page(&self, block: BlockId, table: usize) -> PageId {
        self.pages.page(block, table)
    }

    /// Whether `block` has pages in the group of a window.
    pub(super) fn has(&self, block: BlockId, group: usize) -> bool {
        self.pages.has(block, group)
    }

    /// Whether there are groups behind the first, which can lose the pages of a block that the tree knows.
    pub(super) fn has_more_groups(&self) -> bool {
        self.groups > 1
    }

    /// Whether `block`, which no tree knows, has all that `other` has, and pages in a window where `other` has none.
    pub(super) fn has_more(&self, block: BlockId, other: BlockId) -> bool {
        let has = |group| (self.pages.has(block, group), self.pages.has(other, group));
        block != other
            && self.place(block) == NOWHERE
            && (1..self.groups).all(|group| has(group) != (false, true))
            && (1..self.groups).any(|group| has(group) == (true, false))
    }

    /// The tree node that `block` stands in.
    pub(super) fn place(&self, block: BlockId) -> Place {
        self.entries[block as usize * self.groups].place
    }

    /// The cached entry that has been unheld for the longest time.
    pub(super) fn oldest_cached(&self) -> Option<Cached> {
        let sentinel = self.sentinel();
        let oldest = self.entries[sentinel].newer as usize;
        (oldest != sentinel).then(|| match oldest.checked_sub(self.num_blocks * self.groups) {
            None => Cached::Block((oldest / self.groups) as BlockId, oldest % self.groups),
            Some(slot) => Cached::State(slot as SlotId),
        })
    }

    /// Holds `count` free blocks in the first group and appends them to `out`. There must be that many, and pages.
    pub(super) fn take(&mut self, count: usize, out: &mut Vec<BlockId>) {
        let kept = self.free.len() - count;
        for &block in self.free[kept..].iter().rev() {
            self.entries[block as usize * self.groups].holds = 1;
            self.pages.give(block, 0);
            out.push(block);
        }
        self.free.truncate(kept);
    }

    /// Holds a block in the group of a window, where it has no pages yet. There must be free ones.
    pub(super) fn take_in(&mut self, block: BlockId, group: usize) {
        let at = self.at(block, group);
        debug_assert!(self.entries[at].holds == 0 && group > 0);
        self.entries[at].holds = 1;
        self.pages.give(block, group);
    }

    /// Holds a block of the tree once more in a group where it has pages; a cached entry leaves the list.
    pub(super) fn hold(&mut self, block: BlockId, group: usize) {
        let at = self.at(block, group);
        self.entries[at].holds += 1;
        if self.entries[at].holds == 1 {
            self.uncache(block, group);
        }
    }

    /// Lets go of a block once in a group; the last to do so makes its entry cached or free. In the first group a
    /// sequence does so last. Panics if it is not held.
    pub(super) fn release(&mut self, block: BlockId, group: usize) {
        self.assert_exists(block);
        let at = self.at(block, group);
        let entry = &mut self.entries[at];
        assert!(entry.holds > 0, "release of KV block {block}, which is not held");
        entry.holds -= 1;
        if entry.holds > 0 {
        } else if entry.place == NOWHERE {
            self.drop_entry(block, group);
        } else {
            self.cache(block, group);
        }
    }

    /// Makes what a block has in the group of a window the newest of all that is cached; nothing if it is not cached.
    pub(super) fn renew(&mut self, block: BlockId, group: usize) {
        let at = self.at(block, group);
        let Entry { holds, place, .. } = self.entries[at];
        if holds == 0 && place != NOWHERE && self.pages.has(block, group) {
            self.uncache(block, group);
            self.cache(block, group);
        }
    }

    /// Evicts what a block has in the group of a window, which is cached.
    pub(super) fn evict(&mut self, block: BlockId, group: usize) {
        self.uncache(block, group);
        self.drop_entry(block, group);
    }

    /// The tree takes up `blocks` in the node `place`. Panics, with nothing changed, if one of them is not
    /// held or in the tree already.
    pub(super) fn enter_tree(&mut self, blocks: &[BlockId], place: Place) {
        for (i, &block) in blocks.iter().enumerate() {
            self.assert_exists(block);
            let entry = self.entries[self.at(block, 0)];
            if entry.holds > 0 && entry.place == NOWHERE {
                self.set_place(block, place);
                continue;
            }
            let why = if entry.holds == 0 { "which is not held" } else { "which is in the tree already" };
            blocks[..i].iter().for_each(|&entered| self.set_place(entered, NOWHERE));
            panic!("insert of KV block {block}, {why}");
        }
    }

    /// The tree has moved `block` to the node `place`.
    pub(super) fn set_place(&mut self, block: BlockId, place: Place) {
        let first = self.at(block, 0);
        self.entries[first..first + self.groups].iter_mut().for_each(|entry| entry.place = place);
    }

    /// The tree has forgotten `block`: what is cached of it becomes free, with the snapshot behind it; what is held stays with its holders.
    pub(super) fn leave_tree(&mut self, block: BlockId) {
        self.set_place(block, NOWHERE);
        if let Some(slot) = self.snapshot_behind(block) {
            self.forget_snapshot(slot);
        }
        for group in (0..self.groups).rev() {
            let at = self.at(block, group);
            if self.entries[at].holds == 0 && (group == 0 || self.pages.has(block, group)) {
                self.uncache(block, group);
                self.drop_entry(block, group);
            }
        }
    }

    /// An entry that is neither held nor cached gives its pages back; the first group's gives up the block.
    fn drop_entry(&mut self, block: BlockId, group: usize) {
        self.pages.take_back(block, group);
        if group == 0 {
            self.free.push(block);
        }
    }

    fn assert_exists(&self, block: BlockId) {
        let num_blocks = self.num_blocks();
        assert!((block as usize) < num_blocks, "KV block {block} does not exist: there are {num_blocks}");
    }

    #[inline]
    fn at(&self, block: BlockId, group: usize) -> usize {
        block as usize * self.groups + group
    }

    fn sentinel(&self) -> usize {
        self.entries.len() - 1
    }

    /// A block in a group is cached from now on, as the newest of all.
    fn cache(&mut self, block: BlockId, group: usize) {
        self.link_newest(self.at(block, group));
        self.cached += self.pages.of_block(group);
        self.cached_blocks += usize::from(group == 0);
        self.pages.cache(block, group);
    }

    /// A block in a group is held or free from now on.
    fn uncache(&mut self, block: BlockId, group: usize) {
        self.unlink(self.at(block, group));
        self.cached -= self.pages.of_block(group);
        self.cached_blocks -= usize::from(group == 0);
        self.pages.uncache(block, group);
    }

    fn link_newest(&mut self, at: usize) {
        let sentinel = self.sentinel();
        let newest = self.entries[sentinel].older;
        self.entries[newest as usize].newer = at as EntryId;
        self.entries[sentinel].older = at as EntryId;
        let entry = &mut self.entries[at];
        (entry.older, entry.newer) = (newest, sentinel as EntryId);
    }

    fn unlink(&mut self, at: usize) {
        let Entry { older, newer, .. } = self.entries[at];
        self.entries[older as usize].newer = newer;
        self.entries[newer as usize].older = older;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_round() {
        let mut pool = BlockPool::new(4, &[Group::FULL], 0).unwrap();
        let mut blocks = Vec::new();
        pool.take(3, &mut blocks);
        assert_eq!(blocks, [0, 1, 2]);
        pool.set_place(0, 7);
        pool.set_place(1, 7);
        pool.hold(1, 0);
        for block in [2, 1, 0] {
            pool.release(block, 0);
        }
        pool.check().unwrap();
        assert_eq!(pool.counts(), Counts { free: 2, cached: 1, held: 1 });
        pool.release(1, 0);
        assert_eq!(pool.oldest_cached(), Some(Cached::Block(0, 0)));
        pool.hold(0, 0);
        assert_eq!(pool.oldest_cached(), Some(Cached::Block(1, 0)));
        pool.leave_tree(0);
        pool.leave_tree(1);
        pool.release(0, 0);
        pool.check().unwrap();
        assert_eq!(pool.counts(), Counts { free: 4, cached: 0, held: 0 });
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(BlockPool::new(0, &[Group::FULL], 0).is_err());
        assert!(BlockPool::new(u32::MAX as usize, &[Group::FULL], 0).is_err());
    }

    #[test]
    fn check_finds_what_is_broken() {
        let mut pool = BlockPool::new(2, &[Group::FULL], 0).unwrap();
        pool.take(1, &mut Vec::new());
        pool.entries[0].holds = 0;
        assert!(pool.check().unwrap_err().to_string().contains("neither free nor cached nor held"));
        pool.free.push(0);
        pool.check().unwrap();
        pool.free.push(0);
        assert!(pool.check().unwrap_err().to_string().contains("free twice"));
    }
}
