//! What one sequence holds of the cache: its blocks in the first group, in each window those that it is on, and the slot
//! of its state.
//!
//! ```text
//!   blocks        0 1 2 3 4 5 6 7 8 9      block size 16, window 40, the next query at token 100
//!   group 0       h h h h h h h h h h
//!   the window    . . . h h h h h - -      h held, - taken once it is computed, . released
//! ```
//!
//! A sequence slides before it extends, so that it holds at most the pages of [`KvAllocator::capacity`]. All calls are
//! O(blocks that change hands), and nothing for windows where there are none.

use std::ops::Range;

use super::{BlockId, Group, KvAllocator, SlotId};
use pyengine_base::error::Result;

/// The blocks of a sequence, in its order. Give it back by [`KvAllocator::let_go`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    blocks: Vec<BlockId>,
    /// By group behind the first: which of `blocks` it holds there.
    windows: Vec<Range<usize>>,
    /// How many blocks it found when it began.
    found: usize,
    /// The slot of its state.
    pub(super) state: Option<SlotId>,
    /// The snapshot that its state is to be copied from, held until it is.
    pub(super) restore: Option<SlotId>,
    /// The snapshot of its own that it keeps from being evicted.
    pub(super) kept: Option<SlotId>,
}

impl Holding {
    /// All blocks: those that the first group holds.
    #[inline]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Takes memory for `blocks` blocks.
    pub fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve(blocks.saturating_sub(self.blocks.len()));
    }

    /// How many leading blocks can be written to, in every group.
    #[inline]
    pub fn covered(&self) -> usize {
        self.windows.iter().map(|window| window.end).fold(self.blocks.len(), usize::min)
    }

    /// The first block that it holds in a group.
    #[inline]
    pub fn first(&self, group: usize) -> usize {
        if group == 0 { 0 } else { self.windows[group - 1].start }
    }

    /// The slot of its state, as soon as it has blocks of its own to write to.
    #[inline]
    pub fn state(&self) -> Option<SlotId> {
        self.state
    }
}

impl Group {
    /// The first block that a query at `position` sees.
    fn first_seen(&self, position: usize, block_size: usize) -> usize {
        self.kind.window().map_or(0, |window| (position + 1).saturating_sub(window) / block_size)
    }

    /// The most blocks that one query sees.
    fn most_seen(&self, block_size: usize) -> usize {
        self.kind.window().map_or(usize::MAX, |window| (window - 1).div_ceil(block_size) + 1)
    }
}

impl KvAllocator {
    /// The groups of layers, the one that sees all tokens first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Tokens that one sequence can have at most.
    pub fn capacity(&self) -> usize {
        let pages = |blocks: usize| -> usize {
            let of = |group: &Group| group.tables * blocks.min(group.most_seen(self.block_size));
            self.groups.iter().map(of).sum::<usize>() + self.state_pages()
        };
        let (mut low, mut high) = (0, self.pool.num_blocks());
        while low < high {
            let middle = (low + high).div_ceil(2);
            (low, high) = if pages(middle) <= self.num_pages() { (middle, high) } else { (low, middle - 1) };
        }
        low * self.block_size
    }

    /// Pages that a sequence wants beside those that it holds, until it has computed `tokens`.
    pub fn demand(&self, holding: &Holding, tokens: usize) -> usize {
        let blocks = tokens.div_ceil(self.block_size);
        let first = self.groups[0].tables * blocks.saturating_sub(holding.blocks.len());
        let windows = self.groups[1..].iter().enumerate().map(|(at, group)| {
            let held = holding.windows.get(at).map_or(0, Range::len);
            group.tables * blocks.min(group.most_seen(self.block_size)).saturating_sub(held)
        });
        first + windows.sum::<usize>() + self.state_demand(holding)
    }

    /// Holds the longest cached prefix of `tokens`, of at most `max_blocks` blocks, for a sequence that holds nothing
    /// yet; returns how many blocks.
    pub fn begin(&mut self, holding: &mut Holding, salt: u64, tokens: &[u32], max_blocks: usize) -> usize {
        debug_assert!(holding.blocks.is_empty() && holding.state.is_none());
        let count = self.match_prefix(salt, tokens, max_blocks, &mut holding.blocks);
        holding.windows.clear();
        holding.found = count;
        for group in 1..self.groups.len() {
            let window = self.seen_behind(group, count)..count;
            holding.blocks[window.clone()].iter().for_each(|&block| self.pool.hold(block, group));
            holding.windows.push(window);
        }
        self.find_snapshot(holding, count);
        count
    }

    /// Takes from the tree what it knows behind the first `first` blocks of a sequence, at most up to `max_blocks`, in
    /// the place of its own blocks, which are released; returns how many. `found` is scratch.
    pub fn go_on(
        &mut self,
        holding: &mut Holding,
        salt: u64,
        tokens: &[u32],
        first: usize,
        max_blocks: usize,
        found: &mut Vec<BlockId>,
    ) -> usize {
        found.clear();
        let count = self.match_further(salt, tokens, &holding.blocks[..first], max_blocks, found);
        if count == 0 {
            return 0;
        }
        let own = first..first + count;
        for group in 1..self.groups.len() {
            let seen = self.seen_behind(group, own.end);
            let window = holding.windows[group - 1].clone();
            found[seen.max(first) - first..].iter().for_each(|&block| self.pool.hold(block, group));
            let kept_before = window.start..first.min(window.end);
            let gone_before = kept_before.start..seen.clamp(kept_before.start, kept_before.end);
            let gone = window.start.max(first)..window.end.min(own.end);
            for range in [gone, gone_before] {
                let blocks = holding.blocks.get(range).unwrap_or_default();
                blocks.iter().rev().for_each(|&block| self.pool.release(block, group));
            }
            holding.windows[group - 1] = seen.max(window.start)..window.end.max(own.end);
        }
        self.release(&holding.blocks[own.clone()]);
        holding.blocks[own.clone()].copy_from_slice(found);
        self.find_snapshot(holding, own.end);
        count
    }

    /// Releases what no query from `position` on sees.
    #[inline]
    pub fn slide(&mut self, holding: &mut Holding, position: usize) {
        for (at, window) in holding.windows.iter_mut().enumerate() {
            let first = self.groups[at + 1].first_seen(position, self.block_size).max(window.start);
            for &block in &holding.blocks[window.start..first.min(window.end)] {
                self.pool.release(block, at + 1);
            }
            *window = first..window.end.max(first);
        }
    }

    /// Makes a sequence hold its first `blocks` blocks in the first group, those of them from its windows on, up to
    /// `covered`, in all others, and the slot of its state. All or nothing; evicts what is cached.
    pub fn extend(&mut self, holding: &mut Holding, blocks: usize, covered: usize) -> Result<()> {
        let more = blocks.saturating_sub(holding.blocks.len());
        let windows = holding.windows.iter().enumerate();
        let pages = windows
            .map(|(at, window)| self.groups[at + 1].tables * covered.saturating_sub(window.end))
            .fold(more * self.groups[0].tables, |sum, pages| sum + pages);
        if pages == 0 && more == 0 && (holding.state.is_some() || !self.has_states()) {
            return Ok(());
        }
        self.give_state(holding, more, pages)?;
        self.make_room(more, pages)?;
        self.pool.take(more, &mut holding.blocks);
        for (at, window) in holding.windows.iter_mut().enumerate() {
            for &block in holding.blocks.get(window.end..covered).unwrap_or_default() {
                self.pool.take_in(block, at + 1);
            }
            window.end = window.end.max(covered);
        }
        Ok(())
    }

    /// [`extend`](Self::extend)s the windows of a sequence up to `covered` or as far as there are pages; returns how
    /// many leading blocks are covered. O(blocks that it falls short by).
    pub fn extend_windows(&mut self, holding: &mut Holding, covered: usize) -> usize {
        let blocks = holding.blocks.len();
        let least = holding.covered();
        for reached in (least..covered).rev() {
            if self.extend(holding, blocks, reached + 1).is_ok() {
                return reached + 1;
            }
        }
        least
    }

    /// Releases all but the first `blocks` blocks, last first. Blocks that a window has left become as new, from where
    /// a sequence that begins like this one would look into it: behind the prefix that was found, and before each border
    /// where paths part in the tree. So its age is that of its tokens, as it is in the first group. And so do the last
    /// snapshot and those where paths part: the ones between go first.
    pub fn cut(&mut self, holding: &mut Holding, blocks: usize) {
        let (mut border, mut passed) = (holding.found, false);
        for at in (blocks..holding.blocks.len()).rev() {
            let block = holding.blocks[at];
            if at < border && self.parts_behind(block) {
                border = at + 1;
            }
            for (group, window) in (1..).zip(&holding.windows) {
                if window.contains(&at) {
                    self.pool.release(block, group);
                } else if at < window.start && at >= self.seen_behind(group, border) {
                    self.pool.renew(block, group);
                }
            }
            if let Some(slot) = self.pool.snapshot_behind(block)
                && (!std::mem::replace(&mut passed, true) || self.parts_behind(block))
            {
                self.pool.renew_snapshot(slot);
            }
            self.pool.release(block, 0);
        }
        holding.blocks.truncate(blocks);
        for window in &mut holding.windows {
            *window = window.start.min(blocks)..window.end.min(blocks);
        }
    }

    /// Releases everything.
    pub fn let_go(&mut self, holding: &mut Holding) {
        self.cut(holding, 0);
        self.let_go_of_state(holding);
    }

    fn parts_behind(&self, block: BlockId) -> bool {
        !self.is_found_everywhere()
            && self.tree.as_ref().is_some_and(|tree| tree.parts_behind(block, &self.pool))
    }

    /// The first block that the first query behind `blocks` blocks sees.
    fn seen_behind(&self, group: usize, blocks: usize) -> usize {
        self.groups[group].first_seen(blocks * self.block_size, self.block_size).min(blocks)
    }

    /// How many of the blocks `found` behind those that a sequence holds can be gone on from.
    pub(super) fn usable(&self, held: &[BlockId], found: &[BlockId]) -> usize {
        let mut runs = vec![0; self.groups.len()];
        let mut usable = 0;
        for (at, &block) in held.iter().chain(found).enumerate() {
            let mut whole = true;
            for (group, run) in runs.iter_mut().enumerate().skip(1) {
                *run = if self.pool.has(block, group) { *run + 1 } else { 0 };
                whole &= *run >= at + 1 - self.seen_behind(group, at + 1);
            }
            whole &= self.pool.state_pages() == 0 || self.pool.snapshot_behind(block).is_some();
            if whole && at >= held.len() {
                usable = at + 1 - held.len();
            }
        }
        usable
    }
}
