//! Scores and sums over keys and values of heads: keys lie dimension by dimension, values token by token.

use super::inputs::{Inputs, OfHeads};
use super::tiles::{Column, Keys, Loops, Span, Values};
use super::walk::{Chunk, Scratch, Walk};
use crate::element::Element;
use crate::math::prefetch;
use crate::rope::rotate;

impl<T: Element> Walk<'_, T> {
    /// Writes the rotated and scaled queries, \[rows, dim\].
    pub(super) fn queries_of_heads(&self, of: &OfHeads<'_, T>, scratch: &mut Scratch) {
        let Inputs { step, heads, angles, .. } = *self.inputs;
        let (dim, of_group) = (heads.dim, heads.group() * heads.dim);
        // Every element is written.
        scratch.queries.resize(self.rows * dim, 0.0);
        for (query, target) in scratch.queries.chunks_exact_mut(of_group).enumerate() {
            let token = self.first_token + query;
            let position = step.positions[token] as usize;
            let source = &of.qkv[token * of.width + self.piece.head * of_group..][..of_group];
            rotate_heads(source, &angles[position * dim..][..dim], self.scale_of(position), target);
        }
    }

    /// Writes the scores of all rows with the keys of a chunk.
    pub(super) fn score_heads(
        &self,
        of: &OfHeads<'_, T>,
        chunk: Chunk,
        loops: &Loops<T>,
        scratch: &mut Scratch,
    ) {
        let (OfHeads { keys, values, .. }, heads) = (*of, self.inputs.heads);
        let (dim, block, width) = (heads.dim, heads.block_size, chunk.width);
        let Scratch { queries, scores, keys: side_by_side, columns, .. } = scratch;
        columns.clear();
        if block.is_multiple_of(loops.stored.lanes) {
            let lanes = || (0..block).step_by(loops.stored.lanes);
            columns.extend(
                self.pages_of(chunk).flat_map(|(at, page)| {
                    lanes().map(move |lane| Column { from: page + lane, at: at + lane })
                }),
            );
            let of = Keys { keys, stride: block, columns, ahead: values };
            (loops.stored.score)(queries, dim, of, scores, width);
        } else {
            side_by_side.resize(dim * width, 0.0);
            for (at, page) in self.pages_of(chunk) {
                prefetch(&values[page..][..heads.page()]);
                let page = &keys[page..][..heads.page()];
                for (row, page) in side_by_side.chunks_exact_mut(width).zip(page.chunks_exact(block)) {
                    row[at..][..block].iter_mut().zip(page).for_each(|(to, from)| *to = from.to_f32());
                }
            }
            columns.extend((0..width).step_by(loops.floats.lanes).map(|at| Column { from: at, at }));
            let of = Keys { keys: side_by_side, stride: width, columns, ahead: side_by_side };
            (loops.floats.score)(queries, dim, of, scores, width);
        }
    }

    /// Adds the weighted values of a chunk to `output`, \[rows, dim\].
    pub(super) fn weigh_heads(
        &self,
        of: &OfHeads<'_, T>,
        chunk: Chunk,
        next: Option<&Self>,
        loops: &Loops<T>,
        scratch: &mut Scratch,
        output: &mut [f32],
    ) {
        let (OfHeads { keys, values, .. }, heads) = (*of, self.inputs.heads);
        let (dim, block) = (heads.dim, heads.block_size);
        let Scratch { scores, spans, .. } = scratch;
        spans.clear();
        spans.extend(self.pages_of(chunk).enumerate().map(|(index, (at, page))| {
            let wanted = self.page_wanted_after(chunk.start + at, index, next);
            Span { from: page, tokens: block.min(chunk.length - at), at, next: wanted.unwrap_or(page) }
        }));
        let values = Values { values, stride: dim, spans, ahead: keys };
        (loops.stored.weigh)(scores, chunk.width, values, output, dim);
    }
}

#[inline(always)]
fn rotate_heads_body<T: Element, const FMA: bool>(
    source: &[T],
    angles: &[f32],
    scale: f32,
    target: &mut [f32],
) {
    for (head, rotated) in source.chunks_exact(angles.len()).zip(target.chunks_exact_mut(angles.len())) {
        rotate::<T, FMA>(head, angles, scale, rotated);
    }
}

crate::multiversion!(
    fn rotate_heads<T: Element>(source: &[T], angles: &[f32], scale: f32, target: &mut [f32]) = rotate_heads_body
);
