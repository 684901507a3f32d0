//! A step's rows and the places of their keys and values: borrowed views of the step buffers.
//!
//! ```text
//! tokens        a a a b c c      row 0 brings three tokens, row 1 one, row 2 two
//! query_start   0     3 4   6
//! page_indices  7 2 9 | 4 | 7 5  blocks of each row's sequence, in its order (CSR)
//! page_indptr   0       3   4   6
//! ```

use std::fmt;
use std::ops::Range;

/// One step, as the planner wrote it. Slices may be longer than the step needs.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Rows (sequences) in this step.
    pub num_rows: usize,
    /// Tokens in this step.
    pub num_tokens: usize,
    /// Position of each token in its sequence.
    pub positions: &'a [i32],
    /// Where each token's keys and values go: page * block_size + offset.
    pub slot_mapping: &'a [i32],
    /// First token of each row, and the number of tokens.
    pub query_start: &'a [i32],
    /// Tokens of each row's sequence in the cache from its first page on, those of this step among them.
    pub kv_length: &'a [i32],
    /// Where each row's pages begin, and where the last one's end; a step of several tables has them one after the other.
    pub page_indptr: &'a [i32],
    /// Blocks.
    pub page_indices: &'a [i32],
}

/// Why a step cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadStep(pub String);

impl fmt::Display for BadStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "malformed step: {}", self.0)
    }
}

impl std::error::Error for BadStep {}

impl Step<'_> {
    /// Tokens of `row`.
    #[inline]
    pub fn tokens(&self, row: usize) -> Range<usize> {
        self.query_start[row] as usize..self.query_start[row + 1] as usize
    }

    /// Blocks of `row`.
    #[inline]
    pub fn pages(&self, row: usize) -> &[i32] {
        &self.page_indices[self.page_indptr[row] as usize..self.page_indptr[row + 1] as usize]
    }

    /// Checks everything that the kernels index with; O(rows + tokens + pages), once a step.
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check(&self, block_size: usize, num_blocks: usize, max_context: usize) -> Result<(), BadStep> {
        let fail = |what: &str| Err(BadStep(what.into()));
        let (rows, tokens) = (self.num_rows, self.num_tokens);
        if self.query_start.len() <= rows || self.page_indptr.len() <= rows || self.kv_length.len() < rows {
            return fail("more rows than the buffers have");
        }
        if self.positions.len() < tokens || self.slot_mapping.len() < tokens {
            return fail("more tokens than the buffers have");
        }
        let rising = |starts: &[i32]| starts[0] >= 0 && starts.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rising(&self.query_start[..=rows])
            || self.query_start[0] != 0
            || self.query_start[rows] as usize != tokens
        {
            return fail("query_start does not rise from 0 to the number of tokens");
        }
        if !rising(&self.page_indptr[..=rows]) || self.page_indptr[rows] as usize > self.page_indices.len() {
            return fail("page_indptr does not rise to the number of pages");
        }
        let below = |values: &[i32], limit: usize| values.iter().all(|&v| v >= 0 && (v as usize) < limit);
        if !below(&self.positions[..tokens], max_context) {
            return fail("a position beyond the context");
        }
        if !below(&self.slot_mapping[..tokens], num_blocks * block_size) {
            return fail("a slot outside of the cache");
        }
        let pages = self.page_indptr[0] as usize..self.page_indptr[rows] as usize;
        if !below(&self.page_indices[pages], num_blocks) {
            return fail("a block outside of the cache");
        }
        for row in 0..rows {
            let length = self.kv_length[row];
            if length < 0 || (length as usize) < self.tokens(row).len() {
                return fail("kv_length is less than the row's tokens");
            }
            if length as usize > self.pages(row).len() * block_size {
                return fail("a row has fewer pages than its kv_length needs");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Step<'static> {
        Step {
            num_rows: 2,
            num_tokens: 3,
            positions: &[4, 5, 0],
            slot_mapping: &[12, 13, 0],
            query_start: &[0, 2, 3],
            kv_length: &[6, 1],
            page_indptr: &[0, 2, 3],
            page_indices: &[2, 3, 0],
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(good().check(4, 4, 8), Ok(()));
        let bad: [(&str, Step); 9] = [
            ("rows", Step { num_rows: 3, ..good() }),
            ("tokens", Step { num_tokens: 4, ..good() }),
            ("query_start", Step { query_start: &[0, 4, 3], ..good() }),
            ("page_indptr", Step { page_indptr: &[0, 2, 9], ..good() }),
            ("position", Step { positions: &[4, 8, 0], ..good() }),
            ("slot", Step { slot_mapping: &[12, 16, 0], ..good() }),
            ("block", Step { page_indices: &[2, -1, 0], ..good() }),
            ("kv_length", Step { kv_length: &[1, 1], ..good() }),
            ("pages", Step { kv_length: &[9, 1], ..good() }),
        ];
        for (name, step) in bad {
            assert!(step.check(4, 4, 8).unwrap_err().0.contains(name), "{name}");
        }
    }
}
