//! Layers whose memory is a matrix for each head: it decays, takes in a token's value under its key, and is read by
//! its query.
//!
//! ```text
//!                  decay           takes in                             reads
//!  delta rule      S <- a S        S <- S + k (b (v - S^T k))^T         o = S^T q     Yang et al., "Gated Delta Networks", 2024
//!  decaying sum    S <- a S        S <- S + k (b v)^T                   o = S^T q     Dao and Gu, "Transformers are SSMs", 2024
//! ```
//!
//! S is \[key dim, value dim\] in float32, and a is one number a head or one for each channel of the key. Columns of S have
//! nothing to do with each other: a tile of columns goes through all tokens of a row while it is in the first cache.
//!
//! ```text
//! slot ─► tile ─► accepted drafts ─► certain tokens ─► slot
//!                                      └─► snapshot     └─► drafts: outputs alone
//! ```
//!
//! Tokens come one after the other, and each number is one chain of operations in a fixed order: results are the same
//! bits however the tokens of a sequence are cut into rows, and whatever other rows and threads there are.
//! O(tokens * heads * key dim * value dim).

mod decay;
mod delta_rule;
mod gates;
mod shape;
#[cfg(test)]
mod tests;
mod tiles;
mod token;

use std::cell::RefCell;

use crate::element::Element;
use crate::states::{Place, Pool, Row, States};
use crate::threads::{Shared, Threads};
pub use decay::{DecaySum, DecaySumInputs};
pub use delta_rule::{DeltaRule, DeltaRuleInputs};
pub use shape::Shape;
use tiles::Tiles;
use token::Token;

#[derive(Default)]
struct Scratch {
    token: Token,
    /// The accepted drafts of a head.
    records: Vec<f32>,
    tile: Vec<f32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One layer's recurrence over a step.
struct Recurrence<'a, T, P> {
    states: &'a States<'a>,
    pool: &'a Pool<'a>,
    place: Place,
    shape: Shape,
    tiles: Tiles,
    /// Makes a token for a head.
    prepare: P,
    /// \[tokens, heads * value dim\].
    out: Shared<'a, T>,
}

impl<T: Element, P: Fn(usize, usize, &mut Token) + Sync> Recurrence<'_, T, P> {
    fn run(&self, threads: &Threads) {
        let heads = self.shape.heads;
        // A matrix is read and written once a row at least.
        let passes = self.states.num_tokens + 2 * self.states.num_rows;
        threads.share(self.states.num_rows * heads, 3 * passes * self.shape.state_size(), |piece| {
            if let Some(row) = self.states.row(piece / heads) {
                SCRATCH.with_borrow_mut(|scratch| self.head(&row, piece % heads, scratch));
            }
        });
    }

    fn head(&self, row: &Row, head: usize, scratch: &mut Scratch) {
        scratch.token.resize(&self.shape);
        scratch.records.clear();
        for draft in 0..row.accepted {
            // SAFETY: this head of the row's slot is this piece's alone. Copied, as new drafts are written over them.
            let record = unsafe { self.pool.read(row.slot, self.record(draft, head), self.shape.record()) };
            scratch.records.extend_from_slice(record);
        }
        for first in (0..self.shape.value_dim).step_by(self.tiles.columns) {
            let columns = self.tiles.columns.min(self.shape.value_dim - first);
            self.tile(row, head, first, columns, scratch);
        }
    }

    /// Some columns of a head's matrix, through all tokens of a row.
    fn tile(&self, row: &Row, head: usize, first: usize, columns: usize, scratch: &mut Scratch) {
        let Scratch { token, records, tile, sums } = scratch;
        let Shape { heads, key_dim, value_dim, .. } = self.shape;
        let width = (self.tiles.width)(columns);
        tile.resize(key_dim * width, 0.0);
        sums.resize(width, 0.0);
        let (start, size) = (self.place.state + head * self.shape.matrix(), self.shape.matrix());
        match row.source {
            // SAFETY: no other piece writes this head of the slot that the row begins from.
            Some(source) => unsafe {
                (self.tiles.load)(&self.pool.read(source, start, size)[first..], value_dim, columns, tile);
            },
            None => tile.fill(0.0),
        }
        let save = |tile: &[f32], slot: usize| {
            // SAFETY: this head of the slots that the row writes is this piece's alone.
            let matrix = unsafe { self.pool.write(slot, start, size) };
            (self.tiles.save)(tile, columns, &mut matrix[first..], value_dim);
        };
        for record in records.chunks_exact(self.shape.record()) {
            token.load(&self.shape, record);
            (self.tiles.step)(tile, token, first, sums);
        }
        for index in 0..row.tokens.len() {
            if let Some(snapshot) = row.snapshot_behind(index) {
                save(tile, snapshot);
            }
            if index == row.certain {
                save(tile, row.slot);
            }
            let number = row.tokens.start + index;
            (self.prepare)(number, head, token);
            if index >= row.certain && first == 0 {
                let start = self.record(index - row.certain, head);
                // SAFETY: as above.
                token.save(&self.shape, unsafe { self.pool.write(row.slot, start, self.shape.record()) });
            }
            (self.tiles.step)(tile, token, first, sums);
            // SAFETY: a token, head and column is in one piece only.
            let out = unsafe { self.out.part((number * heads + head) * value_dim + first, columns) };
            for ((to, sum), value) in out.iter_mut().zip(sums.iter()).zip(&token.value[first..]) {
                *to = T::from_f32(if token.skip == 0.0 { *sum } else { sum + token.skip * value });
            }
        }
        if row.certain == row.tokens.len() {
            if let Some(snapshot) = row.snapshot_behind(row.certain) {
                save(tile, snapshot);
            }
            save(tile, row.slot);
        }
    }

    /// Where a head's record of a draft lies in a slot.
    fn record(&self, draft: usize, head: usize) -> usize {
        self.place.drafts + draft * self.shape.draft_size() + head * self.shape.record()
    }
}
