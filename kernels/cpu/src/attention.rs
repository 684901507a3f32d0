//! Causal attention over the paged cache: grouped queries, any number of query rows per sequence.
//!
//! The work is cut into pieces of (sequence, key head, some queries); the query heads of a group go
//! together, so that each key and value is read once for all of them. Within a piece, keys are taken
//! in chunks with the online softmax (Milakov and Gimelshein, 2018), everything in f32:
//!
//! ```text
//!             chunk 0 (128 keys)     chunk 1
//! query 0  |  s s s s s s s s  |  s s s . . .      s: score, '.': after the query
//! query 1  |  s s s s s s s s  |  s s s s . .      running maximum, sum and output per query
//! ```
//!
//! While a chunk's keys are scored its values are fetched, and then the keys of the next chunk: pages
//! lie scattered, and the processor foresees nothing across their borders.
//!
//! Where a window limits how far back a query sees, the keys before it are neither scored nor read,
//! but for those in its first page; the page table of a row may begin there:
//!
//! ```text
//! position   0 ......... 32 ........ 48 ........ 64 ....... 77        window 20, pages of 16
//! pages                   |  page 0   |  page 1   |  page 2  |        kv_length 78 - 32 = 46
//! query 77                              . . s s s s s s s s s s
//! ```
//!
//! Chunks lie at fixed positions of the sequence and each row is summed in one order, so that its
//! result does not depend on the other rows, on how a prompt was cut, on where its page table begins,
//! or on the threads. O(queries * keys seen * heads * head_dim) time, O(1) memory per thread.

use std::cell::RefCell;
use std::ops::Range;

use crate::element::Element;
use crate::math::{exp, mul_add, prefetch, tanh};
use crate::paged::Heads;
use crate::rope::rotate;
use crate::step::Step;
use crate::threads::{Shared, Threads};

/// Keys in a chunk (blocks larger than this are a chunk each).
const CHUNK: usize = 128;
/// Query rows (queries times heads of a group) in a piece.
const ROWS: usize = 32;
/// Rows that go through the inner loops together; the rest go by two and one.
const TILE: usize = 4;

/// Some queries of one sequence, for one key head.
#[derive(Debug, Clone, Copy)]
struct Piece {
    row: usize,
    head: usize,
    first: usize,
    count: usize,
}

/// What a layer does to the scores of a query besides scaling them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mask<'a> {
    /// Keys that a query sees, the last of them its own; None is all before it.
    pub window: Option<usize>,
    /// A query sees keys of its own chunk of so many positions alone (Meta, "Llama 4", 2025).
    pub chunk: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A logit for each query head, which takes a share of the softmax and has no value; empty is none.
    pub sinks: &'a [f32],
    /// Multiplies the scores of the query at each position; empty is 1.
    pub temperatures: &'a [f32],
}

/// The inputs of attention. The keys and values of this step's tokens are in the cache already; see
/// [`crate::paged::append`].
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, T> {
    /// Rows and pages.
    pub step: Step<'a>,
    /// Shape.
    pub heads: Heads,
    /// Multiplies the scores.
    pub scale: f32,
    /// Which keys a query sees, and what becomes of its scores.
    pub mask: Mask<'a>,
    /// \[tokens, width\], of which the queries are read, not rotated yet.
    pub qkv: &'a [T],
    /// From one token of `qkv` to the next: [`Heads::qkv_width`], or that of queries alone.
    pub width: usize,
    /// \[positions, head_dim\]; see [`crate::rope`].
    pub angles: &'a [f32],
    /// Keys of the layer; see [`crate::paged`].
    pub keys: &'a [T],
    /// Values of the layer.
    pub values: &'a [T],
}

/// Attention of every token of the step to its sequence's keys and values, into `out`,
/// \[tokens, query heads * head_dim\].
///
/// # Panics
/// A slice is shorter than the step needs; see [`Step::check`].
pub fn attend<T: Element>(threads: &Threads, inputs: &Inputs<'_, T>, out: &mut [T]) {
    let Inputs { step, heads, mask, .. } = *inputs;
    assert!(heads.dim.is_multiple_of(8) && heads.query.is_multiple_of(heads.kv), "unsupported heads");
    assert!(mask.sinks.is_empty() || mask.sinks.len() == heads.query, "a sink for each query head");
    let per_piece = (ROWS / heads.group()).max(1);
    let mut pieces = Vec::with_capacity(step.num_rows * heads.kv);
    let mut operations = 0;
    for row in 0..step.num_rows {
        let queries = step.tokens(row).len();
        let reach = mask.window.or(mask.chunk).unwrap_or(usize::MAX);
        let keys = (step.kv_length[row] as usize).min(reach.saturating_add(queries));
        operations += queries * keys * heads.query * heads.dim;
        for head in 0..heads.kv {
            pieces.extend((0..queries).step_by(per_piece).map(|first| Piece {
                row,
                head,
                first,
                count: per_piece.min(queries - first),
            }));
        }
    }
    let out = Shared::new(&mut out[..step.num_tokens * heads.query * heads.dim]);
    threads.share(pieces.len(), operations, |index| {
        SCRATCH.with_borrow_mut(|scratch| {
            attend_piece(pieces[index], inputs, &out, scratch);
        });
    });
}

thread_local! {
    /// Rotated queries, outputs and scores of the piece that this thread works on.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[inline(always)]
fn attend_piece_body<T: Element, const FMA: bool>(
    piece: Piece,
    inputs: &Inputs<'_, T>,
    out: &Shared<'_, T>,
    scratch: &mut Vec<f32>,
) {
    let Inputs { step, heads, scale, mask, qkv, width, angles, keys, values } = *inputs;
    let (dim, group) = (heads.dim, heads.group());
    let rows = piece.count * group;
    let chunk = (CHUNK / heads.block_size).max(1) * heads.block_size;
    scratch.clear();
    scratch.resize(rows * (2 * dim + chunk + 2), 0.0);
    let (queries, rest) = scratch.split_at_mut(rows * dim);
    let (output, rest) = rest.split_at_mut(rows * dim);
    let (scores, rest) = rest.split_at_mut(rows * chunk);
    let (maxima, sums) = rest.split_at_mut(rows);
    maxima.fill(f32::NEG_INFINITY);
    if let Some(sinks) = mask.sinks.get(piece.head * group..).filter(|sinks| !sinks.is_empty()) {
        maxima.chunks_exact_mut(group).for_each(|heads| heads.copy_from_slice(&sinks[..group]));
        sums.fill(1.0);
    }

    let tokens = step.tokens(piece.row);
    let first_token = tokens.start + piece.first;
    // Keys are counted from the border of chunks before the first page: that is where position
    // `lead` of the row's table lies.
    let length = step.kv_length[piece.row] as usize;
    let before = (step.positions[tokens.end - 1] as usize + 1).saturating_sub(length);
    let lead = before / heads.block_size * heads.block_size % chunk;
    // The end of the keys that the piece's first query sees, and their beginning; each query after it
    // sees one more, and with a window one less.
    let seen = lead + length - tokens.len() + piece.first + 1;
    let position_of_border = before / heads.block_size * heads.block_size - lead;
    let first_seen = |query: usize| {
        let by_window = mask.window.map_or(0, |window| (seen + query).saturating_sub(window));
        let by_chunk = mask.chunk.map_or(0, |chunk| {
            let position = position_of_border + seen + query - 1;
            (position / chunk * chunk).saturating_sub(position_of_border)
        });
        by_window.max(by_chunk).max(lead)
    };
    for query in 0..piece.count {
        let token = first_token + query;
        let position = step.positions[token] as usize;
        let angles = &angles[position * dim..][..dim];
        let scale = mask.temperatures.get(position).map_or(scale, |temperature| scale * temperature);
        let source = &qkv[token * width + piece.head * group * dim..][..group * dim];
        let target = &mut queries[query * group * dim..][..group * dim];
        for (head, rotated) in source.chunks_exact(dim).zip(target.chunks_exact_mut(dim)) {
            rotate::<T, FMA>(head, angles, scale, rotated);
        }
    }

    let keys_seen = seen + piece.count - 1;
    let all_pages = step.pages(piece.row);
    let page_of = |block: i32| block as usize * heads.stride + piece.head * heads.page();
    let begin = first_seen(0);
    for start in (begin / chunk * chunk..keys_seen).step_by(chunk) {
        let length = chunk.min(keys_seen - start);
        // Pages of the chunk that come before what any query of the piece sees.
        let skipped = (begin.max(start) - start) / heads.block_size;
        let first_page = (start + skipped * heads.block_size - lead) / heads.block_size;
        let pages = &all_pages[first_page..][..length.div_ceil(heads.block_size) - skipped];
        for (index, &block) in (skipped..).zip(pages) {
            prefetch(&values[page_of(block)..][..heads.page()]);
            let page = &keys[page_of(block)..][..heads.page()];
            score_page::<T, FMA>(queries, page, heads, &mut scores[index * heads.block_size..], chunk);
        }
        for row in 0..rows {
            let query = row / group;
            let visible = (seen + query).saturating_sub(start).min(length);
            let hidden = first_seen(query).saturating_sub(start).min(visible);
            let scores = &mut scores[row * chunk..][..chunk];
            if let Some(cap) = mask.soft_cap {
                scores[hidden..visible].iter_mut().for_each(|score| *score = cap * tanh::<FMA>(*score / cap));
            }
            let factor = soften::<FMA>(scores, hidden..visible, &mut maxima[row], &mut sums[row]);
            if factor != 1.0 {
                output[row * dim..][..dim].iter_mut().for_each(|value| *value *= factor);
            }
        }
        for (index, &block) in (skipped..).zip(pages) {
            if let Some(&next) = all_pages.get(first_page + chunk / heads.block_size + index - skipped) {
                prefetch(&keys[page_of(next)..][..heads.page()]);
            }
            let page = &values[page_of(block)..][..heads.page()];
            let used = heads.block_size.min(length - index * heads.block_size);
            let weights = &scores[index * heads.block_size..];
            weigh_page::<T, FMA>(weights, chunk, &page[..used * dim], dim, output);
        }
    }

    for query in 0..piece.count {
        let start = (first_token + query) * heads.query * dim + piece.head * group * dim;
        // SAFETY: a token and key head is in one piece only, since `query_start` rises.
        let target = unsafe { out.part(start, group * dim) };
        for head in 0..group {
            let row = query * group + head;
            let source = &output[row * dim..][..dim];
            for (to, &from) in target[head * dim..][..dim].iter_mut().zip(source) {
                *to = T::from_f32(from / sums[row]);
            }
        }
    }
}

crate::multiversion!(
    fn attend_piece<T: Element>(
        piece: Piece, inputs: &Inputs<'_, T>, out: &Shared<'_, T>, scratch: &mut Vec<f32>,
    ) = attend_piece_body
);

/// Scores of every query row with the tokens of one page: `scores[row * stride + token]`.
#[inline(always)]
fn score_page<T: Element, const FMA: bool>(
    queries: &[f32],
    page: &[T],
    heads: Heads,
    scores: &mut [f32],
    stride: usize,
) {
    let rows = queries.len() / heads.dim;
    let mut lane = 0;
    macro_rules! lanes {
        ($width:literal) => {
            while heads.block_size - lane >= $width {
                let mut row = 0;
                while row + TILE <= rows {
                    score_tile::<T, FMA, TILE, $width>(queries, row, page, lane, heads, scores, stride);
                    row += TILE;
                }
                if row + 2 <= rows {
                    score_tile::<T, FMA, 2, $width>(queries, row, page, lane, heads, scores, stride);
                    row += 2;
                }
                while row < rows {
                    score_tile::<T, FMA, 1, $width>(queries, row, page, lane, heads, scores, stride);
                    row += 1;
                }
                lane += $width;
            }
        };
    }
    lanes!(16);
    lanes!(8);
    lanes!(1);
}

#[inline(always)]
fn score_tile<T: Element, const FMA: bool, const R: usize, const L: usize>(
    queries: &[f32],
    row: usize,
    page: &[T],
    lane: usize,
    heads: Heads,
    scores: &mut [f32],
    stride: usize,
) {
    let dim = heads.dim;
    let queries: [&[f32]; R] = std::array::from_fn(|r| &queries[(row + r) * dim..][..dim]);
    let mut sums = [[0.0f32; L]; R];
    for (d, tokens) in page.chunks_exact(heads.block_size).enumerate().take(dim) {
        let tokens: &[T; L] = tokens[lane..][..L].try_into().expect("L tokens");
        for r in 0..R {
            let query = queries[r][d];
            for l in 0..L {
                sums[r][l] = mul_add::<FMA>(query, tokens[l].to_f32(), sums[r][l]);
            }
        }
    }
    for r in 0..R {
        scores[(row + r) * stride + lane..][..L].copy_from_slice(&sums[r]);
    }
}

/// Turns a row's scores into weights: e^(score - maximum) for those that are `visible`, 0 for the rest.
/// Updates maximum and sum, and returns by what the output so far is to be multiplied.
#[inline(always)]
fn soften<const FMA: bool>(
    scores: &mut [f32],
    visible: Range<usize>,
    maximum: &mut f32,
    sum: &mut f32,
) -> f32 {
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    let seen = &mut scores[visible];
    if seen.is_empty() {
        return 1.0;
    }
    let mut lanes = [*maximum; 8];
    for group in seen.chunks(8) {
        for (lane, &score) in lanes.iter_mut().zip(group) {
            *lane = if score > *lane { score } else { *lane };
        }
    }
    let new = lanes.into_iter().fold(*maximum, f32::max);
    let factor = exp::<FMA>(*maximum - new);
    let mut lanes = [0.0f32; 8];
    let mut groups = seen.chunks_exact_mut(8);
    for group in &mut groups {
        for (lane, score) in lanes.iter_mut().zip(group) {
            *score = exp::<FMA>(*score - new);
            *lane += *score;
        }
    }
    for (lane, score) in lanes.iter_mut().zip(groups.into_remainder()) {
        *score = exp::<FMA>(*score - new);
        *lane += *score;
    }
    *sum = *sum * factor + lanes.iter().sum::<f32>();
    *maximum = new;
    factor
}

/// Adds the weighted values of one page to every row's output.
#[inline(always)]
fn weigh_page<T: Element, const FMA: bool>(
    weights: &[f32],
    stride: usize,
    page: &[T],
    dim: usize,
    output: &mut [f32],
) {
    let rows = output.len() / dim;
    let mut start = 0;
    macro_rules! dims {
        ($width:literal) => {
            while dim - start >= $width {
                let mut row = 0;
                while row + TILE <= rows {
                    weigh_tile::<T, FMA, TILE, $width>(weights, stride, page, row, start, dim, output);
                    row += TILE;
                }
                if row + 2 <= rows {
                    weigh_tile::<T, FMA, 2, $width>(weights, stride, page, row, start, dim, output);
                    row += 2;
                }
                while row < rows {
                    weigh_tile::<T, FMA, 1, $width>(weights, stride, page, row, start, dim, output);
                    row += 1;
                }
                start += $width;
            }
        };
    }
    dims!(16);
    dims!(8);
}

#[inline(always)]
fn weigh_tile<T: Element, const FMA: bool, const R: usize, const L: usize>(
    weights: &[f32],
    stride: usize,
    page: &[T],
    row: usize,
    start: usize,
    dim: usize,
    output: &mut [f32],
) {
    let tokens = page.len() / dim;
    let weights: [&[f32]; R] = std::array::from_fn(|r| &weights[(row + r) * stride..][..tokens]);
    let mut sums = [[0.0f32; L]; R];
    for r in 0..R {
        sums[r].copy_from_slice(&output[(row + r) * dim + start..][..L]);
    }
    for (token, value) in page.chunks_exact(dim).enumerate() {
        let value: &[T; L] = value[start..][..L].try_into().expect("L values");
        for r in 0..R {
            let weight = weights[r][token];
            for l in 0..L {
                sums[r][l] = mul_add::<FMA>(weight, value[l].to_f32(), sums[r][l]);
            }
        }
    }
    for r in 0..R {
        output[(row + r) * dim + start..][..L].copy_from_slice(&sums[r]);
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
