//! Scores and sums over latents: all heads of a piece's queries are rows of one matrix product per key.
//!
//! ```text
//!  widen    the chunk's latents as floats, [keys, dim]                    once for all rows, and for both products
//!  score    [key][row] = sum over d of  latent[key][d] * query[d][row]    lanes are rows: nothing is summed across them
//!  weigh    [row][d]  += sum over keys of  weight[row][key] * latent[key][d], of the first d        lanes are dimensions
//! ```

use super::inputs::{Inputs, OfLatents};
use super::tiles::{Column, Keys, Loops, Span, Values};
use super::walk::{Chunk, Scratch, Walk};
use crate::element::Element;
use crate::rope::rotate;

/// Keys whose values stay in the first cache while all rows weigh them.
const WEIGHED: usize = 16;

impl<T: Element> Walk<'_, T> {
    /// Rows of the piece in whole registers.
    fn rows_in_registers(&self, loops: &Loops<T>) -> usize {
        self.rows.next_multiple_of(loops.floats.lanes)
    }

    /// Writes the scaled queries, those that meet latents above the rotated ones, \[dim, rows in whole registers\].
    pub(super) fn queries_of_latents(&self, of: &OfLatents<'_, T>, loops: &Loops<T>, scratch: &mut Scratch) {
        let Inputs { step, heads, angles, .. } = *self.inputs;
        let (rank, turned, across) = (of.rank, heads.dim - of.rank, self.rows_in_registers(loops));
        scratch.queries.clear();
        scratch.queries.resize(heads.dim * across, 0.0);
        let mut rotated = vec![0.0; turned];
        for row in 0..self.rows {
            let (token, head) = (self.first_token + row / heads.query, row % heads.query);
            let position = step.positions[token] as usize;
            let (angles, scale) = (&angles[position * turned..][..turned], self.scale_of(position));
            rotate::<T, false>(
                &of.rotating.row(token)[head * turned..][..turned],
                angles,
                scale,
                &mut rotated,
            );
            let absorbed = &of.absorbed.row(token)[head * rank..][..rank];
            let numbers =
                absorbed.iter().map(|number| number.to_f32() * scale).chain(rotated.iter().copied());
            let column = scratch.queries[row..].iter_mut().step_by(across);
            column.zip(numbers).for_each(|(to, number)| *to = number);
        }
    }

    /// Makes the latents of a chunk floats, and writes the scores of all rows with them.
    pub(super) fn score_latents(
        &self,
        of: &OfLatents<'_, T>,
        chunk: Chunk,
        loops: &Loops<T>,
        scratch: &mut Scratch,
    ) {
        let (dim, block) = (self.inputs.heads.dim, self.inputs.heads.block_size);
        let across = self.rows_in_registers(loops);
        let Scratch { queries, scores, by_key, keys, columns, .. } = scratch;
        keys.resize(chunk.length * dim, 0.0);
        for (at, page) in self.pages_of(chunk) {
            let count = block.min(chunk.length - at) * dim;
            widen(&of.latents[page..][..count], &mut keys[at * dim..][..count]);
        }
        by_key.resize(chunk.length * across, 0.0);
        columns.clear();
        columns.extend((0..across).step_by(loops.floats.lanes).map(|at| Column { from: at, at }));
        let all = Keys { keys: queries, stride: across, columns, ahead: queries };
        let (seen, found) = (&keys[chunk.first * dim..], &mut by_key[chunk.first * across..]);
        (loops.floats.score)(seen, dim, all, found, across);
        for (key, by_row) in found.chunks_exact(across).enumerate() {
            let column = scores[chunk.first + key..].iter_mut().step_by(chunk.width);
            column.zip(by_row).for_each(|(to, &score)| *to = score);
        }
    }

    /// Adds the weighted latents of a chunk to `output`, \[rows, rank\].
    pub(super) fn weigh_latents(
        &self,
        chunk: Chunk,
        loops: &Loops<T>,
        scratch: &mut Scratch,
        output: &mut [f32],
    ) {
        let (dim, rank) = (self.inputs.heads.dim, self.inputs.value_dim());
        let Scratch { scores, keys, .. } = scratch;
        for at in (chunk.first..chunk.length).step_by(WEIGHED) {
            let (from, tokens) = (at * dim, WEIGHED.min(chunk.length - at));
            let spans = &[Span { from, tokens, at, next: from }];
            let values = Values { values: keys, stride: dim, spans, ahead: keys };
            (loops.floats.weigh)(scores, chunk.width, values, output, rank);
        }
    }
}

#[inline(always)]
fn widen_body<T: Element, const FMA: bool>(from: &[T], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

crate::multiversion!(fn widen<T: Element>(from: &[T], to: &mut [f32]) = widen_body);
