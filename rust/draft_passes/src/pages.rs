//! Where a block's keys and values of the draft model are: its page in each table.
//!
//! The draft model's layers lie in the pages of the model's cache groups, and pages behind a window are given back. As the
//! draft model catches up late, it may have to compute tokens whose pages in a window are others' by then:
//!
//! ```text
//!   blocks      0 1 2 3 4 5 6 7 8 9       the draft model has none of them yet
//!   table 0     a b c d e f g h i j       all tokens: names the blocks
//!   a window    - - q r s t u v w x       - given to another block, q r cached, the others held
//!   a pass      S T q r ...               S T spare pages, one row's at a time
//! ```
//!
//! A pass writes to the pages that a block still has, so that a prefix which is found again has them; for the others there
//! are *spare* pages behind the pool's, a ring of blocks for each table, with room for a window and the tokens of a pass.
//! Which pages a block has is learned from the steps that write its tokens: a page is a block's until another one writes to
//! it. O(tables) a block that a step writes, or a pass attends to.

use std::ops::Range;

use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::Group;
use pyengine_scheduler::step::buffers::StepBuffers;
use pyengine_scheduler::step::layout::StepLayout;

const NONE: u32 = u32::MAX;

/// The pages of all blocks. A block is named by its page in the first table.
pub(super) struct DraftPages {
    block_size: usize,
    num_pages: usize,
    /// By table behind the first: keys that a query sees; None is all.
    windows: Vec<Option<usize>>,
    /// \[pages, tables behind the first\]: the page that a block was last seen to have.
    pages: Vec<u32>,
    /// By page: the block that was last seen to write to it.
    owners: Vec<u32>,
    /// Blocks of the ring of spare pages.
    spare_blocks: usize,
}

/// The pages that a draft model shares with the model that it drafts for.
#[derive(Debug, Clone, Copy)]
pub struct SharedPages<'a> {
    /// What they are for; the first group has tables.
    pub groups: &'a [Group],
    /// Those of the pool.
    pub num_pages: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Blocks for which each table behind the first has spare pages, from page `num_pages` on, table after table.
    pub spare_blocks: usize,
}

/// A row of a pass: the tokens of a sequence that it computes.
pub(super) struct PassRow {
    /// Its row in the step.
    pub row: usize,
    pub positions: Range<usize>,
}

impl DraftPages {
    /// Of no block is known where it is.
    pub fn new(shared: &SharedPages<'_>) -> Result<Self> {
        let &SharedPages { groups, num_pages, block_size, spare_blocks } = shared;
        let tables = groups.iter().flat_map(|group| std::iter::repeat_n(group.kind.window(), group.tables));
        let windows: Vec<_> = tables.skip(1).collect();
        if groups.first().is_none_or(|first| first.kind.window().is_some() || first.tables == 0) {
            return Err(Error::InvalidArgument("the first page table must be one of all tokens".into()));
        }
        let (pages, owners) = match windows.len() {
            0 => (0, 0),
            others => (num_pages * others, num_pages),
        };
        let made = Self {
            block_size,
            num_pages,
            windows,
            pages: vec![NONE; pages],
            owners: vec![NONE; owners],
            spare_blocks,
        };
        if made.widest() > 0 && made.spare_tokens() == 0 {
            return Err(Error::InvalidArgument(format!(
                "{spare_blocks} spare blocks have no room for a window of {}",
                made.widest()
            )));
        }
        Ok(made)
    }

    /// Page tables.
    pub fn tables(&self) -> usize {
        self.windows.len() + 1
    }

    /// The most tokens that a row with spare pages has in a pass.
    pub fn spare_tokens(&self) -> usize {
        (self.spare_blocks.saturating_sub(1) * self.block_size)
            .saturating_sub(self.widest().saturating_sub(1))
    }

    /// Takes note of the pages that a step writes to.
    pub fn note(&mut self, layout: &StepLayout, step: &StepBuffers<'_>) {
        let tokens = match self.windows.len() {
            0 => 0,
            _ => step.header.num_tokens.max(0) as usize,
        };
        let mut before = usize::MAX;
        for token in 0..tokens {
            let block = step.slot_mapping[token] as usize / self.block_size;
            if std::mem::replace(&mut before, block) == block {
                continue;
            }
            self.owners[block] = block as u32;
            for table in 0..self.windows.len() {
                let cell = step.slot_mapping[(table + 1) * layout.max_tokens() + token] as usize;
                let page = cell / self.block_size;
                self.pages[block * self.windows.len() + table] = page as u32;
                self.owners[page] = block as u32;
            }
        }
    }

    /// Where a row that lacks the tokens from `hole` on begins: the last position up to there of which all windows have
    /// what they see before it.
    pub fn begin(&self, blocks: &[i32], hole: usize) -> usize {
        let mut begin = hole;
        while let Some(lost) = self.first_lost(blocks, begin, begin) {
            begin = lost * self.block_size;
        }
        begin
    }

    /// Whether a row that computes these positions needs spare pages.
    pub fn lacks(&self, blocks: &[i32], positions: Range<usize>) -> bool {
        self.first_lost(blocks, positions.start, positions.end).is_some()
    }

    /// The first block without a page in some window, of those that tokens from `begin` to `end` see.
    fn first_lost(&self, blocks: &[i32], begin: usize, end: usize) -> Option<usize> {
        let lost = (0..self.windows.len()).filter_map(|table| {
            let mut seen = self.first_seen(table, begin)..end.div_ceil(self.block_size);
            seen.find(|&block| self.page(blocks[block] as usize, table).is_none())
        });
        lost.min()
    }

    /// The page tables of a pass behind the first, which has `pages` pages; returns how many all have.
    pub fn fill(
        &self,
        layout: &StepLayout,
        step: &StepBuffers<'_>,
        pass: &mut StepBuffers<'_>,
        rows: &[PassRow],
        mut pages: usize,
    ) -> usize {
        for (table, at) in (1..).zip(0..self.windows.len()) {
            let indptr = table * (layout.max_rows() + 1);
            pass.page_indptr[indptr] = pages as i32;
            for (row, PassRow { row: of, positions }) in rows.iter().enumerate() {
                let blocks = &step.page_indices[step.page_indptr[*of] as usize..];
                let page = |block: usize| {
                    self.page(blocks[block] as usize, at).unwrap_or_else(|| self.spare(block, at))
                };
                let first = self.first_seen(at, positions.start);
                for block in first..positions.end.div_ceil(self.block_size) {
                    pass.page_indices[pages] = page(block) as i32;
                    pages += 1;
                }
                pass.page_indptr[indptr + row + 1] = pages as i32;
                pass.kv_length[table * layout.max_rows() + row] =
                    (positions.end - first * self.block_size) as i32;
                let tokens = pass.query_start[row] as usize..;
                for (token, position) in tokens.zip(positions.clone()) {
                    let cell =
                        page(position / self.block_size) * self.block_size + position % self.block_size;
                    pass.slot_mapping[table * layout.max_tokens() + token] = cell as i32;
                }
            }
        }
        pages
    }

    /// The page of a block in a table behind the first.
    fn page(&self, block: usize, table: usize) -> Option<usize> {
        let page = self.pages[block * self.windows.len() + table];
        (page != NONE && self.owners[page as usize] as usize == block).then_some(page as usize)
    }

    /// The spare page of a sequence's block.
    fn spare(&self, block: usize, table: usize) -> usize {
        self.num_pages + table * self.spare_blocks + block % self.spare_blocks.max(1)
    }

    /// The first block that a query at `position` sees.
    fn first_seen(&self, table: usize, position: usize) -> usize {
        self.windows[table].map_or(0, |window| (position + 1).saturating_sub(window) / self.block_size)
    }

    fn widest(&self) -> usize {
        self.windows.iter().copied().flatten().max().unwrap_or(0)
    }
}
