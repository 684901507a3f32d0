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
//! A row that was planned ahead is moved by the device: which cells it writes is noted when the step before is learned.
//! O(1) a token; [`first_hole`](DraftCache::first_hole) is O(blocks). Nothing is allocated but a place for each slot.

use std::ops::Range;

use crate::step::buffers::{StepBuffers, header};
use pyengine_base::error::{Error, Result};

/// The tokens of all cells, and which of them the draft model has computed.
pub(super) struct DraftCache {
    block_size: usize,
    /// By cell; negative where only the device knows: the mark of the step that wrote it.
    tokens: Vec<i32>,
    /// By block: so many cells from its first hold what the draft model computes.
    filled: Vec<u32>,
    /// By slot.
    slots: Vec<Slot>,
    /// The cells that moved rows of the step that was noted last may write.
    reach: Vec<u32>,
}

/// What is open of a sequence while its steps are in flight.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// The cell whose token the host does not know yet, and its mark.
    unknown: Option<(u32, i32)>,
    /// Its row that was planned ahead.
    moved: Option<Moved>,
    /// By how many tokens the device moved its newest row whose place is known.
    back: usize,
}

/// A row that was planned ahead, in the step that was noted last.
#[derive(Debug, Clone)]
struct Moved {
    /// Its cells in `reach`: those from where it begins if no draft before it is right.
    reach: Range<usize>,
    /// Drafts before it that it takes for right, and its own.
    assumed: usize,
    drafts: usize,
    mark: i32,
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
            slots: Vec::new(),
            reach: Vec::new(),
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

    /// Every cell that the step writes holds its token, and nothing of the draft model any more; those of rows that the
    /// device moves are noted by [`learn`](Self::learn).
    pub fn note(&mut self, step: &StepBuffers<'_>, rows: usize) {
        self.reach.clear();
        self.slots.iter_mut().for_each(|slot| slot.moved = None);
        for row in 0..rows {
            let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
            if step.assumed_drafts[row] > 0 {
                self.note_moved(step, row, tokens.len());
                continue;
            }
            for (&cell, &token) in step.slot_mapping[tokens.clone()].iter().zip(&step.token_ids[tokens]) {
                self.tokens[cell as usize] = token;
                self.overwrite(cell as usize);
            }
        }
        let feeds = step.header[header::NUM_FEEDS].max(0) as usize;
        for (&token, &slot) in step.feed_token[..feeds].iter().zip(&*step.feed_sequence) {
            let slot = self.slot(slot);
            if slot.moved.is_none() {
                let cell = step.slot_mapping[token as usize];
                slot.unknown = Some((cell as u32, mark(step)));
                self.tokens[cell as usize] = mark(step);
            }
        }
    }

    /// Notes what a row of so many tokens may write that the device moves.
    fn note_moved(&mut self, step: &StepBuffers<'_>, row: usize, tokens: usize) {
        let assumed = step.assumed_drafts[row] as usize;
        let (end, begin) = (step.kv_length[row] as usize, self.reach.len());
        for position in end - tokens - assumed..end {
            let cell = self.cell(row_pages(step, row), position);
            self.reach.push(cell as u32);
        }
        let reach = begin..self.reach.len();
        let moved = Moved { reach, assumed, drafts: tokens - 1, mark: mark(step) };
        self.slot(step.row_sequence[row]).moved = Some(moved);
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
            let slot = self.slot(step.sample_sequence[at]);
            let (unknown, moved) = (slot.unknown.take(), slot.moved.take());
            let back = slot.back.min(step.assumed_drafts[row].max(0) as usize);
            let first = step.kv_length[row] as usize - back - drafts;
            for (after, &token) in right.iter().enumerate() {
                let cell = self.cell(row_pages(step, row), first + after);
                self.resolve(cell, mark(step), token);
            }
            if let Some((cell, mark)) = unknown {
                self.resolve(cell as usize, mark, last);
            }
            if let Some(moved) = moved {
                self.slot(step.sample_sequence[at]).back = moved.assumed - right.len().min(moved.assumed);
                self.place(&moved, right.len(), last);
            }
        }
    }

    /// Notes a row that the device moved behind `right` drafts and the token `last`.
    ///
    /// Its first pass of the draft model computes the token before it too, as that may be the last draft.
    fn place(&mut self, moved: &Moved, right: usize, last: i32) {
        let begin = moved.reach.start + right.min(moved.assumed);
        for at in begin..=begin + moved.drafts {
            let cell = self.reach[at] as usize;
            self.tokens[cell] = if at == begin { last } else { moved.mark };
            self.overwrite(cell);
        }
        if moved.drafts > 0 {
            for at in begin.saturating_sub(1).max(moved.reach.start)..begin + moved.drafts {
                self.compute(self.reach[at] as usize);
            }
        }
    }

    /// What the draft model has of a cell, and of those behind it in its block, is another token's.
    fn overwrite(&mut self, cell: usize) {
        let filled = &mut self.filled[cell / self.block_size];
        *filled = (*filled).min((cell % self.block_size) as u32);
    }

    fn slot(&mut self, slot: i32) -> &mut Slot {
        let slot = slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        &mut self.slots[slot]
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
    -1 - (step.header[header::STEP_ID] & 0x3fff_ffff) as i32
}

/// The pages of a row, and of those behind it.
fn row_pages<'a>(step: &'a StepBuffers<'_>, row: usize) -> &'a [i32] {
    &step.page_indices[step.page_indptr[row] as usize..]
}
