//! A piece's way through the pages of its sequence, chunk by chunk.

use std::ops::Range;

use super::inputs::Inputs;
use super::sums::Sums;
use super::tiles::{Column, Keys, Loops, Span, Values};
use crate::element::Element;
use crate::math::{prefetch, tanh};
use crate::rope::rotate;

/// Keys in a chunk (blocks larger than this are a chunk each).
const CHUNK: usize = 128;
/// Chunks in a segment.
const SEGMENT: usize = 8;

/// Some queries of one sequence, for one key head.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub row: usize,
    pub head: usize,
    pub first: usize,
    pub count: usize,
}

/// Memory of a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Rotated, \[rows, dim\].
    queries: Vec<f32>,
    /// \[rows, width\].
    scores: Vec<f32>,
    /// Keys of a chunk, \[dim, width\], where pages are no whole registers.
    keys: Vec<f32>,
    /// Columns of a chunk.
    columns: Vec<Column>,
    /// Pages of a chunk.
    spans: Vec<Span>,
}

/// Where a piece's keys lie.
///
/// Keys are counted from the border of chunks before the first page: that is where position `lead` of the row's table
/// lies.
pub struct Walk<'a, T> {
    pub piece: Piece,
    /// Query rows: queries times heads of a group.
    pub rows: usize,
    /// The step's token that is the piece's first query.
    pub first_token: usize,
    inputs: &'a Inputs<'a, T>,
    /// Keys in a chunk.
    chunk: usize,
    lead: usize,
    position_of_border: usize,
    /// The end of the keys that the first query sees; each query after it sees one more.
    seen: usize,
}

impl<'a, T: Element> Walk<'a, T> {
    pub fn new(piece: Piece, inputs: &'a Inputs<'a, T>) -> Self {
        let Inputs { step, heads, .. } = *inputs;
        let tokens = step.tokens(piece.row);
        let chunk = (CHUNK / heads.block_size).max(1) * heads.block_size;
        let length = step.kv_length[piece.row] as usize;
        let before = (step.positions[tokens.end - 1] as usize + 1).saturating_sub(length);
        let first_page = before / heads.block_size * heads.block_size;
        let lead = first_page % chunk;
        Self {
            piece,
            rows: piece.count * heads.group(),
            first_token: tokens.start + piece.first,
            inputs,
            chunk,
            lead,
            position_of_border: first_page - lead,
            seen: lead + length - tokens.len() + piece.first + 1,
        }
    }

    /// The first key that a query sees.
    fn first_seen(&self, query: usize) -> usize {
        let mask = self.inputs.mask;
        let by_window = mask.window.map_or(0, |window| (self.seen + query).saturating_sub(window));
        let by_chunk = mask.chunk.map_or(0, |chunk| {
            let position = self.position_of_border + self.seen + query - 1;
            (position / chunk * chunk).saturating_sub(self.position_of_border)
        });
        by_window.max(by_chunk).max(self.lead)
    }

    /// The end of the keys that any query sees.
    fn end(&self) -> usize {
        self.seen + self.piece.count - 1
    }

    /// The numbers of the segments that some query sees a key of.
    pub fn segments(&self) -> Range<usize> {
        let (length, border) = (SEGMENT * self.chunk, self.position_of_border);
        (border + self.first_seen(0)) / length..(border + self.end()).div_ceil(length)
    }

    /// Writes the rotated and scaled queries to the scratch.
    pub fn rotate_queries(&self, scratch: &mut Scratch) {
        let Inputs { step, heads, scale, mask, qkv, width, angles, .. } = *self.inputs;
        let (dim, of_group) = (heads.dim, heads.group() * heads.dim);
        // Every element is written.
        scratch.queries.resize(self.rows * dim, 0.0);
        for (query, target) in scratch.queries.chunks_exact_mut(of_group).enumerate() {
            let token = self.first_token + query;
            let position = step.positions[token] as usize;
            let scale = mask.temperatures.get(position).map_or(scale, |temperature| scale * temperature);
            let source = &qkv[token * width + self.piece.head * of_group..][..of_group];
            rotate_heads(source, &angles[position * dim..][..dim], scale, target);
        }
    }

    /// Adds a segment's keys and values to `sums`.
    ///
    /// The memory is asked for `next`'s first keys while its last values are weighed.
    pub fn attend(
        &self,
        segment: usize,
        next: Option<&Self>,
        loops: &Loops<T>,
        scratch: &mut Scratch,
        sums: &mut Sums,
    ) {
        let (length, border) = (SEGMENT * self.chunk, self.position_of_border);
        let first =
            (segment * length).saturating_sub(border).max(self.first_seen(0) / self.chunk * self.chunk);
        let end = ((segment + 1) * length - border).min(self.end());
        for start in (first..end).step_by(self.chunk) {
            self.attend_chunk(start, next, loops, scratch, sums);
        }
    }

    /// Where a block's keys and values of this head begin.
    fn page_of(&self, block: i32) -> usize {
        let heads = self.inputs.heads;
        block as usize * heads.stride + self.piece.head * heads.page()
    }

    /// Where the page begins whose keys are wanted a chunk after the page of key `at`: of this walk, or the `index`th of
    /// those that the next one comes to.
    fn page_wanted_after(&self, at: usize, index: usize, next: Option<&Self>) -> Option<usize> {
        let page_at = |walk: &Self, key: usize| {
            let block = walk.inputs.heads.block_size;
            walk.inputs
                .step
                .pages(walk.piece.row)
                .get((key - walk.lead) / block)
                .map(|&page| walk.page_of(page))
        };
        match next {
            Some(next) if at / self.chunk == (self.end() - 1) / self.chunk => {
                page_at(next, next.first_seen(0) + index * next.inputs.heads.block_size)
            }
            _ => page_at(self, at + self.chunk),
        }
    }

    fn attend_chunk(
        &self,
        start: usize,
        next: Option<&Self>,
        loops: &Loops<T>,
        scratch: &mut Scratch,
        sums: &mut Sums,
    ) {
        let Inputs { step, heads, mask, keys, values, .. } = *self.inputs;
        let (dim, block, group) = (heads.dim, heads.block_size, heads.group());
        let width = self.chunk.next_multiple_of(loops.stored.lanes);
        let Scratch { queries, scores, keys: side_by_side, columns, spans } = scratch;
        scores.resize(self.rows * width, 0.0);

        let length = self.chunk.min(self.end() - start);
        // Pages of the chunk that come before what any query of the piece sees.
        let skipped = (self.first_seen(0).max(start) - start) / block;
        let first_page = (start + skipped * block - self.lead) / block;
        let all_pages = step.pages(self.piece.row);
        let pages = (skipped..).zip(&all_pages[first_page..][..length.div_ceil(block) - skipped]);
        let pages = pages.map(|(index, &page)| (index * block, self.page_of(page)));
        columns.clear();
        if block.is_multiple_of(loops.stored.lanes) {
            let lanes = || (0..block).step_by(loops.stored.lanes);
            columns.extend(
                pages.clone().flat_map(|(at, page)| {
                    lanes().map(move |lane| Column { from: page + lane, at: at + lane })
                }),
            );
            let of = Keys { keys, stride: block, columns, ahead: values };
            (loops.stored.score)(queries, dim, of, scores, width);
        } else {
            side_by_side.resize(dim * width, 0.0);
            for (at, page) in pages.clone() {
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

        for (row, scores) in scores.chunks_exact_mut(width).enumerate() {
            let query = row / group;
            let visible = (self.seen + query).saturating_sub(start).min(length);
            let hidden = self.first_seen(query).saturating_sub(start).min(visible);
            if let Some(cap) = mask.soft_cap {
                cap_scores(&mut scores[hidden..visible], cap);
            }
            let factor = (loops.stored.soften)(scores, hidden..visible, &mut sums.running[row]);
            if factor != 1.0 {
                sums.output[row * dim..][..dim].iter_mut().for_each(|value| *value *= factor);
            }
        }
        spans.clear();
        spans.extend(pages.enumerate().map(|(index, (at, page))| {
            let wanted = self.page_wanted_after(start + at, index, next);
            Span { from: page, tokens: block.min(length - at), at, next: wanted.unwrap_or(page) }
        }));
        (loops.stored.weigh)(scores, width, Values { values, spans, ahead: keys }, &mut sums.output, dim);
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

#[inline(always)]
fn cap_scores_body<const FMA: bool>(scores: &mut [f32], cap: f32) {
    for score in scores {
        *score = cap * tanh::<FMA>(*score / cap);
    }
}

crate::multiversion!(fn cap_scores(scores: &mut [f32], cap: f32) = cap_scores_body);
