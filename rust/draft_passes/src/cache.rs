//! The draft model's KV cache, as far as the host knows its cells.
//!
//! ```text
//!  block          7         2               cells of a sequence, 4 a block
//!  tokens     a b c d   e f ? .             ?  only the device knows it: the mark of the step that wrote it
//!  filled         4         1               the draft model has computed a to e
//! ```
//!
//! The blocks are the model's, so that prefix hits, preemption and wrong drafts need nothing of their own here: a write
//! to a cell drops the draft model's keys and values of it, and of what follows in its block.
//!
//! O(1) a token; [`first_hole`](DraftCache::first_hole) is O(blocks). Nothing is allocated but a place for each slot.

use pyengine_base::error::{Error, Result};
use pyengine_scheduler::step::buffers::StepBuffers;

/// The tokens of all cells, and which of them the draft model has computed.
pub(super) struct DraftCache {
    block_size: usize,
    /// By cell; negative where only the device knows: the mark of the step that wrote it.
    tokens: Vec<i32>,
    /// By block: how many cells, from its first on, hold what the draft model computes.
    filled: Vec<u32>,
    /// By slot: the cell whose token the host does not know yet, and its mark, while the sequence's steps are in flight.
    unknown: Vec<Option<(u32, i32)>>,
}

impl DraftCache {
    /// A cache of which nothing is known.
    pub fn new(num_blocks: usize, block_size: usize) -> Result<Self> {
        if block_size == 0
            || num_blocks.checked_mul(block_size).is_none_or(|cells| cells >= i32::MAX as usize)
        {
            return Err(Error::InvalidArgument("the cache must have from 1 to 2**31 cells".into()));
        }
        Ok(Self {
            block_size,
            tokens: vec![0; num_blocks * block_size],
            filled: vec![0; num_blocks],
            unknown: Vec::new(),
        })
    }

    /// Tokens a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The cell of a position, in a sequence whose blocks are `pages`.
    pub fn cell(&self, pages: &[i32], position: usize) -> usize {
        pages[position / self.block_size] as usize * self.block_size + position % self.block_size
    }

    /// The token of a cell; negative where only the device knows it.
    pub fn token(&self, cell: usize) -> i32 {
        self.tokens[cell]
    }

    /// The host has chosen what a cell holds.
    pub fn set_token(&mut self, cell: usize, token: i32) {
        self.tokens[cell] = token;
    }

    /// The draft model computes this cell, after all that stand before it in its block.
    pub fn compute(&mut self, cell: usize) {
        self.filled[cell / self.block_size] = (cell % self.block_size) as u32 + 1;
    }

    /// The first position below `first` whose keys and values the draft model lacks, or `first`.
    pub fn first_hole(&self, pages: &[i32], first: usize) -> usize {
        for (page, start) in (0..first).step_by(self.block_size).enumerate() {
            let filled = start + self.filled[pages[page] as usize] as usize;
            if filled < first.min(start + self.block_size) {
                return filled;
            }
        }
        first
    }

    /// Every cell that the step writes holds its token, and nothing of the draft model any more.
    pub fn note(&mut self, step: &StepBuffers<'_>, rows: usize) {
        let tokens = ..step.query_start[rows] as usize;
        for (&cell, &token) in step.slot_mapping[tokens].iter().zip(&step.token_ids[tokens]) {
            self.tokens[cell as usize] = token;
            self.overwrite(cell as usize);
        }
        let feeds = step.header.num_feeds.max(0) as usize;
        for (&token, &slot) in step.feed_token[..feeds].iter().zip(&*step.feed_sequence) {
            let cell = step.slot_mapping[token as usize];
            *self.unknown(slot) = Some((cell as u32, mark(step)));
            self.tokens[cell as usize] = mark(step);
        }
    }

    /// The device fills these cells in this step.
    pub fn await_drafts(&mut self, step: &StepBuffers<'_>, cells: &[i32]) {
        cells.iter().for_each(|&cell| self.tokens[cell as usize] = mark(step));
    }

    /// The tokens that a step put where the device filled them in: see [`DraftPasses::learn`](super::DraftPasses::learn).
    pub fn learn(&mut self, step: &StepBuffers<'_>, rows: usize) {
        for (at, &counted) in step.sampled_counts[..rows].iter().enumerate() {
            let drafts = step.device_drafts[at].max(0) as usize;
            let tokens = &step.sampled_tokens[step.logit_start[at] as usize..][..counted.max(0) as usize];
            let Some((&last, right)) = tokens.split_last() else { continue };
            let row = step.sample_rows[at] as usize;
            let unknown = self.unknown(step.sample_sequence[at]).take();
            let first = step.kv_length[row] as usize - drafts;
            // Drafts of the host were known; the positions behind the row are of no sequence of its own.
            for (after, &token) in right.iter().take(drafts).enumerate() {
                let cell = self.cell(row_pages(step, row), first + after);
                self.resolve(cell, mark(step), token);
            }
            if let Some((cell, mark)) = unknown {
                self.resolve(cell as usize, mark, last);
            }
        }
    }

    /// What the draft model has of a cell, and of those behind it in its block, is another token's.
    fn overwrite(&mut self, cell: usize) {
        let filled = &mut self.filled[cell / self.block_size];
        *filled = (*filled).min((cell % self.block_size) as u32);
    }

    fn unknown(&mut self, slot: i32) -> &mut Option<(u32, i32)> {
        let slot = slot as usize;
        if self.unknown.len() <= slot {
            self.unknown.resize(slot + 1, None);
        }
        &mut self.unknown[slot]
    }

    /// Records a cell's token, unless another step has written it meanwhile.
    fn resolve(&mut self, cell: usize, mark: i32, token: i32) {
        if self.tokens[cell] == mark {
            self.tokens[cell] = token;
        }
    }
}

/// Stands in cells that only the device knows; another for each step in flight.
fn mark(step: &StepBuffers<'_>) -> i32 {
    -1 - (step.header.step_id & 0x3fff_ffff) as i32
}

/// The pages of a row, and of those behind it.
fn row_pages<'a>(step: &'a StepBuffers<'_>, row: usize) -> &'a [i32] {
    &step.page_indices[step.page_indptr[row] as usize..]
}
