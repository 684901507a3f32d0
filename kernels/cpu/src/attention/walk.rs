//! A piece's way through the pages of its sequence, chunk by chunk.

use std::ops::Range;

use super::inputs::{Inputs, Source};
use super::sums::Sums;
use super::tiles::{Column, Loops, Span};
use crate::element::Element;
use crate::math::tanh;

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
    /// Rotated, \[rows, dim\]; over latents \[dim, rows in whole registers\].
    pub queries: Vec<f32>,
    /// \[rows, width\].
    pub scores: Vec<f32>,
    /// Over latents, \[keys, rows in whole registers\].
    pub by_key: Vec<f32>,
    /// Keys of a chunk: \[dim, width\], where pages are no whole registers, or latents \[keys, dim\].
    pub keys: Vec<f32>,
    /// Columns of a chunk.
    pub columns: Vec<Column>,
    /// Pages of a chunk.
    pub spans: Vec<Span>,
}

/// Some keys of a walk.
#[derive(Debug, Clone, Copy)]
pub struct Chunk {
    /// The walk's key that is its first.
    pub start: usize,
    /// Keys of it that are skipped, in whole pages.
    pub first: usize,
    /// Where it ends.
    pub length: usize,
    /// From one row of scores to the next.
    pub width: usize,
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
    pub inputs: &'a Inputs<'a, T>,
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
    pub fn rotate_queries(&self, loops: &Loops<T>, scratch: &mut Scratch) {
        match &self.inputs.source {
            Source::Heads(of) => self.queries_of_heads(of, scratch),
            Source::Latents(of) => self.queries_of_latents(of, loops, scratch),
        }
    }

    /// What multiplies the scores of a query.
    pub fn scale_of(&self, position: usize) -> f32 {
        let Inputs { scale, mask, .. } = *self.inputs;
        mask.temperatures.get(position).map_or(scale, |temperature| scale * temperature)
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
    pub fn page_wanted_after(&self, at: usize, index: usize, next: Option<&Self>) -> Option<usize> {
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
        let (mask, dim) = (self.inputs.mask, self.inputs.value_dim());
        let (block, group) = (self.inputs.heads.block_size, self.inputs.heads.group());
        let width = self.chunk.next_multiple_of(loops.stored.lanes);
        scratch.scores.resize(self.rows * width, 0.0);
        let length = self.chunk.min(self.end() - start);
        // Pages of the chunk that come before what any query of the piece sees are skipped.
        let first = (self.first_seen(0).max(start) - start) / block * block;
        let chunk = Chunk { start, first, length, width };
        match &self.inputs.source {
            Source::Heads(of) => self.score_heads(of, chunk, loops, scratch),
            Source::Latents(of) => self.score_latents(of, chunk, loops, scratch),
        }
        for (row, scores) in scratch.scores.chunks_exact_mut(width).enumerate() {
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
        match &self.inputs.source {
            Source::Heads(of) => self.weigh_heads(of, chunk, next, loops, scratch, &mut sums.output),
            Source::Latents(_) => self.weigh_latents(chunk, loops, scratch, &mut sums.output),
        }
    }

    /// The chunk's pages: which of its keys comes first, and where it begins in the cache.
    pub fn pages_of(&self, chunk: Chunk) -> impl Iterator<Item = (usize, usize)> + Clone {
        let block = self.inputs.heads.block_size;
        let first_page = (chunk.start + chunk.first - self.lead) / block;
        let count = (chunk.length - chunk.first).div_ceil(block);
        let pages = &self.inputs.step.pages(self.piece.row)[first_page..][..count];
        pages.iter().enumerate().map(move |(index, &page)| (chunk.first + index * block, self.page_of(page)))
    }
}

#[inline(always)]
fn cap_scores_body<const FMA: bool>(scores: &mut [f32], cap: f32) {
    for score in scores {
        *score = cap * tanh::<FMA>(*score / cap);
    }
}

crate::multiversion!(fn cap_scores(scores: &mut [f32], cap: f32) = cap_scores_body);
