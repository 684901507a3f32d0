//! The pages of the cache, and which of them each block has.
//!
//! A page is the memory of one block of tokens in some layers, the same number of bytes for all groups; a group whose
//! layers do not fit into one page has several *tables*, each with some of its layers.
//!
//! ```text
//!   6 layers, 5:1, a page for one layer        block 3     block 4
//!   group 0  full       1 table   layer 5      page 17     page 18
//!   group 1  window 32  5 tables  layer 0      -           page 40     - behind the window of all that hold it
//!                                 layer 1      -           page 9
//!                                 ...
//! ```
//!
//! Where there is one group with one table a block is its page, and nothing is kept here. O(tables) a block.

use pyengine_base::error::{Error, Result};

/// Names a block: some tokens of a sequence, and their KV in all groups.
pub type BlockId = u32;

/// Names a page: its index in the KV cache.
pub type PageId = u32;

const NO_PAGE: PageId = PageId::MAX;

/// Blocks to remember for each page where no group keeps all of them: that many tokens can be named without KV.
const REMEMBERED: usize = 16;

/// Layers whose KV is needed for the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Keys that a query sees, its own counted in; None is all before it.
    pub window: Option<usize>,
    /// Pages of a block.
    pub tables: usize,
}

impl Group {
    /// The layers of a model without windows.
    pub const FULL: Self = Self { window: None, tables: 1 };
}

/// The pages of blocks, by group.
pub(super) struct Pages {
    num_pages: usize,
    /// The first table of each group, and the number of tables.
    starts: Vec<usize>,
    /// \[blocks, tables\]; empty where a block is its page.
    of: Vec<PageId>,
    free: Vec<PageId>,
}

impl Pages {
    /// `num_pages` free pages for `groups`, of which the first has no window and may have no tables; and how many
    /// blocks they can be of.
    pub(super) fn new(num_pages: usize, groups: &[Group]) -> Result<(Self, usize)> {
        let windows =
            groups.iter().skip(1).all(|group| group.window.is_some_and(|w| w > 0) && group.tables > 0);
        if groups.first().is_none_or(|group| group.window.is_some()) || !windows {
            return Err(Error::InvalidArgument(format!(
                "{groups:?} are not one group of all tokens, then windows"
            )));
        }
        let mut starts = vec![0];
        groups.iter().for_each(|group| starts.push(starts[starts.len() - 1] + group.tables));
        let tables = starts[groups.len()];
        let plain = groups == [Group::FULL];
        if tables == 0 || num_pages < tables || num_pages >= NO_PAGE as usize / REMEMBERED {
            return Err(Error::InvalidArgument(format!(
                "num_blocks must be between {tables} and {}, not {num_pages}",
                NO_PAGE as usize / REMEMBERED - 1
            )));
        }
        let num_blocks = match groups[0].tables {
            0 => num_pages * REMEMBERED,
            tables => num_pages / tables,
        };
        let of = if plain { Vec::new() } else { vec![NO_PAGE; num_blocks * tables] };
        let free = if plain { Vec::new() } else { (0..num_pages as PageId).rev().collect() };
        Ok((Self { num_pages, starts, of, free }, num_blocks))
    }

    /// Whether a block is its page.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn num_pages(&self) -> usize {
        self.num_pages
    }

    /// Free pages; not counted where a block is its page.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages of a block in a group.
    #[inline]
    pub(super) fn of_block(&self, group: usize) -> usize {
        self.starts[group + 1] - self.starts[group]
    }

    /// The page of `block` in `table`, counted through all groups.
    #[inline]
    pub(super) fn page(&self, block: BlockId, table: usize) -> PageId {
        if self.is_plain() { block } else { self.of[block as usize * self.tables() + table] }
    }

    pub(super) fn tables(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether `block` has its pages in a group that has tables.
    pub(super) fn has(&self, block: BlockId, group: usize) -> bool {
        self.is_plain() || self.cells(block, group).first().is_some_and(|&page| page != NO_PAGE)
    }

    /// Gives `block` its pages in a group. There must be as many free ones.
    pub(super) fn give(&mut self, block: BlockId, group: usize) {
        if !self.is_plain() {
            for at in self.range(block, group) {
                debug_assert_eq!(self.of[at], NO_PAGE);
                self.of[at] = self.free.pop().expect("asked only when there are free pages");
            }
        }
    }

    /// Takes the pages of `block` in a group back.
    pub(super) fn take_back(&mut self, block: BlockId, group: usize) {
        if !self.is_plain() {
            for at in self.range(block, group).rev() {
                self.free.push(std::mem::replace(&mut self.of[at], NO_PAGE));
            }
        }
    }

    /// Every page is free or of one block.
    pub(super) fn check(&self) -> Result<()> {
        let mut seen = vec![false; self.num_pages];
        let pages = self.free.iter().chain(self.of.iter().filter(|&&page| page != NO_PAGE));
        for &page in pages {
            if std::mem::replace(&mut seen[page as usize], true) {
                return Err(Error::Invariant(format!("page {page} is free or given twice")));
            }
        }
        match seen.iter().position(|&seen| !seen).filter(|_| !self.is_plain()) {
            Some(lost) => Err(Error::Invariant(format!("page {lost} is neither free nor of a block"))),
            None => Ok(()),
        }
    }

    fn cells(&self, block: BlockId, group: usize) -> &[PageId] {
        &self.of[self.range(block, group)]
    }

    fn range(&self, block: BlockId, group: usize) -> std::ops::Range<usize> {
        let first = block as usize * self.tables();
        first + self.starts[group]..first + self.starts[group + 1]
    }
}
