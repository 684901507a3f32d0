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
//! Where there is one group with one table, and no state, a block is its page, and nothing is kept here. O(tables) a
//! block.

use super::extents::Extents;
use super::ids::{BlockId, PageId, SlotId};
use pyengine_base::error::{Error, Result};

const NO_PAGE: PageId = PageId::MAX;

/// Blocks to remember for each page where no group keeps all of them: that many tokens can be named without KV.
const REMEMBERED: usize = 16;

/// What the layers of a group keep, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values of all tokens.
    Full,
    /// Keys and values of the last tokens: as many as a query sees, its own counted in.
    Window(usize),
    /// A latent of each token, which keys and values are computed from. Pages count its bytes as they do those of
    /// keys and values, so that nothing but the device knows the difference.
    Latent,
    /// One state a sequence, of this many pages, whatever its length: it holds all such layers. It has no tables.
    State(usize),
}

impl Kind {
    /// The tokens that a query sees, its own counted in; None is all before it.
    pub fn window(self) -> Option<usize> {
        match self {
            Self::Window(tokens) => Some(tokens),
            Self::Full | Self::Latent | Self::State(_) => None,
        }
    }
}

/// Layers of one kind, whose memory is needed for the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// What they keep.
    pub kind: Kind,
    /// Pages of a block.
    pub tables: usize,
}

impl Group {
    /// The layers of a model in which all see all tokens, in one page.
    pub const FULL: Self = Self::full(1);

    /// Layers that keep the keys and values of all tokens.
    pub const fn full(tables: usize) -> Self {
        Self { kind: Kind::Full, tables }
    }

    /// Layers that keep the keys and values of the last `tokens` tokens.
    pub const fn window(tokens: usize, tables: usize) -> Self {
        Self { kind: Kind::Window(tokens), tables }
    }

    /// Layers that keep a latent of each token.
    pub const fn latent(tables: usize) -> Self {
        Self { kind: Kind::Latent, tables }
    }

    /// Layers with a state of this many pages a sequence.
    pub const fn state(pages: usize) -> Self {
        Self { kind: Kind::State(pages), tables: 0 }
    }

    /// The groups that keep something of tokens, and the pages of a state, 0 where there are none.
    pub(super) fn apart(groups: &[Self]) -> Result<(Vec<Self>, usize)> {
        let (mut of_tokens, mut state) = (Vec::new(), 0);
        for group in groups {
            match group.kind {
                Kind::State(pages) if pages > 0 && state == 0 && group.tables == 0 => state = pages,
                Kind::State(_) => {
                    return Err(Error::InvalidArgument(format!(
                        "{groups:?} must have one group of states at most, of pages and without tables"
                    )));
                }
                Kind::Full | Kind::Window(_) | Kind::Latent => of_tokens.push(*group),
            }
        }
        Ok((of_tokens, state))
    }
}

/// Which entries of blocks and which states are cached, as a check is told.
pub(super) struct CachedPages<'a> {
    /// Of a block in a group.
    pub entry: &'a dyn Fn(BlockId, usize) -> bool,
    /// Of the state in a slot.
    pub slot: &'a dyn Fn(SlotId) -> bool,
}

/// The pages of blocks, by group.
pub(super) struct Pages {
    num_pages: usize,
    /// Whether a block is its page.
    plain: bool,
    /// The first table of each group, and the number of tables.
    starts: Vec<usize>,
    /// \[blocks, tables\]; empty where a block is its page.
    of: Vec<PageId>,
    /// By page, whose it is: the block and the group. Empty without states.
    owners: Vec<Option<(BlockId, u32)>>,
    extents: Extents,
}

impl Pages {
    /// `num_pages` free pages for `groups`, of which the first keeps all tokens and may have no tables, and for states
    /// of `state` pages; and how many blocks they can be of.
    pub(super) fn new(num_pages: usize, groups: &[Group], state: usize) -> Result<(Self, usize)> {
        let others = groups.iter().skip(1).all(|group| group.kind.window() != Some(0) && group.tables > 0);
        if groups.first().is_none_or(|group| group.kind.window().is_some()) || !others {
            return Err(Error::InvalidArgument(format!(
                "the first of {groups:?} must keep all tokens, and the others must have tables and windows above 0"
            )));
        }
        let mut starts = vec![0];
        groups.iter().for_each(|group| starts.push(starts[starts.len() - 1] + group.tables));
        let tables = starts[groups.len()];
        let plain = groups == [Group::FULL] && state == 0;
        let least = tables + state;
        if least == 0 || num_pages < least || num_pages >= NO_PAGE as usize / REMEMBERED {
            return Err(Error::InvalidArgument(format!(
                "num_blocks must be between {least} and {}, not {num_pages}",
                NO_PAGE as usize / REMEMBERED - 1
            )));
        }
        let num_blocks = match groups[0].tables {
            0 => num_pages * REMEMBERED,
            tables => num_pages / tables,
        };
        let of = if plain { Vec::new() } else { vec![NO_PAGE; num_blocks * tables] };
        let owners = if state == 0 { Vec::new() } else { vec![None; num_pages] };
        let extents = match (plain, state) {
            (true, _) => Extents::new(0, 1),
            (false, 0) => Extents::new(num_pages, num_pages),
            (false, state) => Extents::new(num_pages, state),
        };
        Ok((Self { num_pages, starts, plain, of, owners, extents }, num_blocks))
    }

    /// Whether a block is its page.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn num_pages(&self) -> usize {
        self.num_pages
    }

    /// Free pages; not counted where a block is its page.
    pub(super) fn free(&self) -> usize {
        self.extents.free()
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
        self.plain || self.cells(block, group).first().is_some_and(|&page| page != NO_PAGE)
    }

    /// Gives `block` its pages in a group. There must be as many free ones.
    pub(super) fn give(&mut self, block: BlockId, group: usize) {
        if !self.is_plain() {
            for at in self.range(block, group) {
                debug_assert_eq!(self.of[at], NO_PAGE);
                let page = self.extents.take();
                self.of[at] = page;
                if let Some(owner) = self.owners.get_mut(page as usize) {
                    *owner = Some((block, group as u32));
                }
            }
        }
    }

    /// Takes the pages of `block` in a group back.
    pub(super) fn take_back(&mut self, block: BlockId, group: usize) {
        if !self.is_plain() {
            for at in self.range(block, group).rev() {
                let page = std::mem::replace(&mut self.of[at], NO_PAGE);
                self.extents.give_back(page);
                if let Some(owner) = self.owners.get_mut(page as usize) {
                    *owner = None;
                }
            }
        }
    }

    /// Counts the pages of `block` in a group as cached from now on. Nothing without states.
    #[inline]
    pub(super) fn cache(&mut self, block: BlockId, group: usize) {
        if !self.owners.is_empty() {
            self.range(block, group).for_each(|at| self.extents.cache(self.of[at]));
        }
    }

    /// Counts the pages of `block` in a group as cached no more. Nothing without states.
    #[inline]
    pub(super) fn uncache(&mut self, block: BlockId, group: usize) {
        if !self.owners.is_empty() {
            self.range(block, group).for_each(|at| self.extents.uncache(self.of[at]));
        }
    }

    /// The block and the group that a page is of, if there are states.
    pub(super) fn owner(&self, page: PageId) -> Option<(BlockId, usize)> {
        self.owners[page as usize].map(|(block, group)| (block, group as usize))
    }

    /// The extents of the pages, which can be slots of states.
    pub(super) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The same to take slots from.
    pub(super) fn extents_mut(&mut self) -> &mut Extents {
        &mut self.extents
    }

    /// Every page is free, of one block, or of one of `slots`. `cached` says so of blocks and groups, and of slots.
    pub(super) fn check(&self, slots: &[SlotId], cached: &CachedPages<'_>) -> Result<()> {
        if self.plain {
            return Ok(());
        }
        let mut by_extent = vec![0; self.num_pages.div_ceil(self.extents.size())];
        let of_slots = slots.iter().flat_map(|&slot| self.extents.pages(slot));
        let given = self.of.iter().copied().filter(|&page| page != NO_PAGE);
        for &slot in slots {
            by_extent[slot as usize] = if (cached.slot)(slot) { self.extents.size() as u32 } else { 0 };
        }
        for (page, owner) in (0..).zip(&self.owners) {
            let here = owner.is_some_and(|(block, group)| self.cells(block, group as usize).contains(&page));
            if owner.is_some() && !here {
                return Err(Error::Invariant(format!("page {page} is not of the block that owns it")));
            }
            if owner.is_some_and(|(block, group)| (cached.entry)(block, group as usize)) {
                by_extent[page as usize / self.extents.size()] += 1;
            }
        }
        let free = self.extents.check((!self.owners.is_empty()).then_some(&by_extent))?;
        let mut seen = vec![false; self.num_pages];
        for page in free.into_iter().chain(given).chain(of_slots) {
            if std::mem::replace(&mut seen[page as usize], true) {
                return Err(Error::Invariant(format!("page {page} is free or given twice")));
            }
        }
        match seen.iter().position(|&seen| !seen) {
            Some(lost) => {
                Err(Error::Invariant(format!("page {lost} is neither free nor of a block or a state")))
            }
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
