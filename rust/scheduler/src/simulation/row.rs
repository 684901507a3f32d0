//! A row of a step, as its buffers tell it, and the request that it must be of.

use std::ops::Range;

use super::device::Device;
use super::expected::Expected;
use crate::step::buffers::StepBuffers;

pub(super) struct Row<'a> {
    pub(super) number: usize,
    pub(super) expected: Expected,
    /// Its tokens of the step.
    pub(super) tokens: Range<usize>,
    /// Tokens of its sequence after the step, and of those the ones that are no drafts.
    pub(super) length: usize,
    pub(super) known: usize,
    /// Where the angles of its sequence begin; see [`Device::rotation`].
    pub(super) rotation: usize,
    /// Under which its keys are: those of two salts or of two rotations are never mixed.
    pub(super) salt: u64,
    /// Its logits; none if it does not sample.
    pub(super) logits: Range<usize>,
    /// By page table: tokens before the row's first page there, and its pages.
    tables: Vec<(usize, &'a [i32])>,
    block_size: usize,
}

impl Row<'_> {
    /// Tokens of its sequence before the step.
    pub(super) fn computed(&self) -> usize {
        self.length - self.tokens.len()
    }

    /// Where the KV of a position is.
    pub(super) fn cell(&self, table: usize, position: usize) -> usize {
        let (before, pages) = self.tables[table];
        let page = pages[(position - before) / self.block_size] as usize;
        page * self.block_size + position % self.block_size
    }
}

impl Device {
    /// The rows of a step. `owner` returns the request behind an index of the sequence table.
    pub(super) fn rows<'a>(
        &self,
        step: &'a StepBuffers<'_>,
        owner: &impl Fn(u32) -> Expected,
    ) -> Vec<Row<'a>> {
        let rows = 0..step.header.num_rows as usize;
        rows.map(|number| self.row(step, number, owner(step.row_sequence[number] as u32))).collect()
    }

    fn row<'a>(&self, step: &'a StepBuffers<'_>, number: usize, expected: Expected) -> Row<'a> {
        let (tokens, length, rotation) = self.span(step, number);
        let is_short = self.short_context == 0 || length <= self.short_context;
        assert!(rotation > 0 || is_short, "short rotations reach so far");
        let sampled = step.header.num_sampled as usize;
        let sampling = step.sample_rows[..sampled].iter().position(|row| *row as usize == number);
        let logits =
            sampling.map_or(0..0, |at| step.logit_start[at] as usize..step.logit_start[at + 1] as usize);
        let tables = (0..self.windows.len())
            .map(|table| self.pages_of(step, number, table, length, tokens.len()))
            .collect();
        Row {
            number,
            known: length - logits.len().saturating_sub(1),
            salt: expected.submit.cache_salt ^ ((rotation as u64) << 32),
            expected,
            tokens,
            length,
            rotation,
            logits,
            tables,
            block_size: self.block_size,
        }
    }

    /// A row's tokens of the step, the tokens of its sequence after it, and where the angles of that begin.
    pub(super) fn span(&self, step: &StepBuffers<'_>, row: usize) -> (Range<usize>, usize, usize) {
        let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
        assert!(!tokens.is_empty());
        let rotation = self.rotation(&step.positions[tokens.clone()]);
        let length = step.positions[tokens.end - 1] as usize + 1 - rotation;
        (tokens, length, rotation)
    }

    /// The tokens before a row's first page in a table, and its pages, which must be those that it needs.
    fn pages_of<'a>(
        &self,
        step: &'a StepBuffers<'_>,
        row: usize,
        table: usize,
        length: usize,
        queries: usize,
    ) -> (usize, &'a [i32]) {
        let kept = step.kv_length[table * self.layout.max_rows() + row] as usize;
        let indptr = &step.page_indptr[table * (self.layout.max_rows() + 1) + row..];
        let pages = &step.page_indices[indptr[0] as usize..indptr[1] as usize];
        assert_eq!(pages.len(), kept.div_ceil(self.block_size), "pages cover the row's KV");
        let before = length - kept;
        assert!(before.is_multiple_of(self.block_size));
        let unseen = self.windows[table].map_or(0, |window| (length - queries + 1).saturating_sub(window));
        assert!(before <= unseen, "pages begin before what the row sees");
        assert!(unseen - before < self.block_size, "and not earlier than they must");
        (before, pages)
    }
}
