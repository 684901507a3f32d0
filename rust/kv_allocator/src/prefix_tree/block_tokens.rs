//! What each block of the prefix tree holds: its tokens, in one array by block.
//!
//! Blocks that were allocated together are neighbours, and so are their tokens: they are compared and copied by stretches.

use std::ops::Range;

use super::super::ids::BlockId;
use pyengine_base::error::{Error, Result};

/// The tokens of all blocks.
pub struct BlockTokens {
    block_size: usize,
    /// \[blocks, block_size\]
    tokens: Vec<u32>,
}

impl BlockTokens {
    pub fn new(num_blocks: usize, block_size: usize) -> Result<Self> {
        let cells = num_blocks.checked_mul(block_size).filter(|&cells| cells <= isize::MAX as usize / 4);
        let Some(cells) = cells else {
            return Err(Error::InvalidArgument(format!("block_size {block_size} is too large")));
        };
        // Written once (zeroes would not be), so that its pages are there before they are needed.
        Ok(Self { block_size, tokens: vec![u32::MAX; cells] })
    }

    /// The first whole blocks of `tokens`, at most `limit`.
    pub fn whole_blocks<'a>(&self, tokens: &'a [u32], limit: usize) -> &'a [u32] {
        &tokens[..(tokens.len() / self.block_size).min(limit) * self.block_size]
    }

    /// What `block` holds.
    pub fn of(&self, block: BlockId) -> &[u32] {
        &self.tokens[self.cells(&[block])]
    }

    /// How many leading blocks of a run hold the leading `tokens`.
    pub fn common_blocks(&self, run: &[BlockId], tokens: &[u32]) -> usize {
        let limit = run.len().min(tokens.len() / self.block_size);
        let mut same = 0;
        for stretch in neighbours(&run[..limit]) {
            let stored = &self.tokens[self.cells(stretch)];
            let asked = &tokens[same * self.block_size..][..stored.len()];
            if stored != asked {
                let pairs = stored.chunks_exact(self.block_size).zip(asked.chunks_exact(self.block_size));
                return same + pairs.take_while(|(stored, asked)| stored == asked).count();
            }
            same += stretch.len();
        }
        same
    }

    /// Writes down what `blocks` hold.
    pub fn store(&mut self, mut tokens: &[u32], blocks: &[BlockId]) {
        for stretch in neighbours(blocks) {
            let cells = self.cells(stretch);
            let (here, rest) = tokens.split_at(cells.len());
            self.tokens[cells].copy_from_slice(here);
            tokens = rest;
        }
    }

    /// `to` holds what `from` does.
    pub fn copy(&mut self, from: BlockId, to: BlockId) {
        let (from, to) = (self.cells(&[from]), self.cells(&[to]).start);
        self.tokens.copy_within(from, to);
    }

    /// Where the tokens of neighbouring blocks stand.
    fn cells(&self, stretch: &[BlockId]) -> Range<usize> {
        let start = stretch[0] as usize * self.block_size;
        start..start + stretch.len() * self.block_size
    }
}

/// Cuts a run where the ids jump.
fn neighbours(run: &[BlockId]) -> impl Iterator<Item = &[BlockId]> {
    run.chunk_by(|&block, &next| next == block + 1)
}
