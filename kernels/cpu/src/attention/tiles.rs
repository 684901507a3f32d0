//! The inner loops of attention, in each instruction set.
//!
//! ```text
//!  score    scores[row][token]  = sum over d of  query[row][d] * key[d][token]                 lanes are tokens
//!  soften   scores[row][token] -> weights e^(score - maximum); maximum and sum of the row      lanes are tokens
//!  weigh    output[row][d]     += sum over tokens of  weight[row][token] * value[token][d]     lanes are dimensions
//! ```
//!
//! A tile is a few rows by a few registers: what is loaded serves all its rows, and its sums stay in registers. Each
//! number is one chain of additions in a fixed order, whatever the tile.

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use std::ops::Range;

use super::sums::Running;
use crate::element::Element;
use crate::isa::InstructionSet;
use crate::math::{CACHE_LINE, prefetch_line};

/// Keys of as many tokens as a register has lanes.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Where they begin among the keys.
    pub from: usize,
    /// Where their scores lie in a row of scores.
    pub at: usize,
}

/// Keys of some columns.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a, T> {
    /// In which columns lie.
    pub keys: &'a [T],
    /// From one dimension to the next.
    pub stride: usize,
    /// What to score.
    pub columns: &'a [Column],
    /// Asked for where keys are read, as the values of a page lie where its keys do.
    pub ahead: &'a [T],
}

/// Values of neighbouring tokens.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Where they begin among the values.
    pub from: usize,
    /// How many.
    pub tokens: usize,
    /// Where their weights lie in a row of scores.
    pub at: usize,
    /// Where as many numbers begin that will be wanted next.
    pub next: usize,
}

/// Values of some spans.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a, T> {
    /// In which spans lie: \[tokens, stride\] each.
    pub values: &'a [T],
    /// From one token to the next, of which the first `dim` numbers are weighed.
    pub stride: usize,
    /// What to weigh.
    pub spans: &'a [Span],
    /// In which lies what will be wanted next.
    pub ahead: &'a [T],
}

/// Takes queries \[rows, dim\], dim, keys, scores \[rows, width\] and width.
type Score<T> = fn(&[f32], usize, Keys<'_, T>, &mut [f32], usize);
/// Takes weights \[rows, width\], width, values, output \[rows, dim\] and dim.
type Weigh<T> = fn(&[f32], usize, Values<'_, T>, &mut [f32], usize);

/// The loops of one instruction set for caches of one type.
#[derive(Debug, Clone, Copy)]
pub struct Tiles<T> {
    /// Tokens of a column.
    pub lanes: usize,
    /// The scores of all rows with all columns.
    pub score: Score<T>,
    /// Turns a row of scores into weights, 0 for those that are not visible, and adds them to the row's sum; returns
    /// by what the row's output so far is to be multiplied. The width is whole registers.
    pub soften: fn(&mut [f32], Range<usize>, &mut Running) -> f32,
    /// Adds the weighted values to the output.
    pub weigh: Weigh<T>,
}

/// The loops for heads of `dim` elements, a multiple of 8.
pub fn tiles<T: Element>(set: InstructionSet, dim: usize) -> Tiles<T> {
    macro_rules! of {
        ($module:ident) => {
            Tiles {
                lanes: $module::LANES,
                score: $module::score,
                soften: $module::soften,
                weigh: $module::weigh,
            }
        };
    }
    match set {
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx512 && dim.is_multiple_of(avx512::LANES) => of!(avx512),
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx2 => of!(avx2),
        _ => of!(portable),
    }
}

/// The inner loops for keys as they are stored, and in float32.
#[derive(Debug, Clone, Copy)]
pub struct Loops<T> {
    pub stored: Tiles<T>,
    pub floats: Tiles<f32>,
}

/// Calls `$tile` for all rows and registers: four, two or one row at a time, and as many registers as give enough sums
/// to hide how long an addition takes: `$few` of few rows, `$wide` of four.
macro_rules! tiled {
    ($tile:ident, $few:literal, $wide:literal, $rows:expr, $registers:expr, ($($argument:expr),*)) => {
        let (rows, registers) = ($rows, $registers);
        let mut row = 0;
        while row < rows {
            let mut first = 0;
            macro_rules! by_registers {
                ($r:literal, $most:literal) => {{
                    while first < registers {
                        match registers - first {
                            left if left >= $most => {
                                $tile::<_, $r, $most>(row, first, $($argument),*);
                                first += $most;
                            }
                            left if left >= $wide => {
                                $tile::<_, $r, $wide>(row, first, $($argument),*);
                                first += $wide;
                            }
                            left if left >= 2 => {
                                $tile::<_, $r, 2>(row, first, $($argument),*);
                                first += 2;
                            }
                            _ => {
                                $tile::<_, $r, 1>(row, first, $($argument),*);
                                first += 1;
                            }
                        }
                    }
                    row += $r;
                }};
            }
            match rows - row {
                1 => by_registers!(1, $few),
                2 | 3 => by_registers!(2, $few),
                _ => by_registers!(4, $wide),
            }
        }
    };
}

macro_rules! loops {
    ($module:ident, [$($feature:meta)?], $few:literal, $wide:literal) => {
        mod $module {
            use super::*;
            use crate::registers::$module::*;

            pub use crate::registers::$module::LANES;

            pub fn score<T: Element>(
                queries: &[f32], dim: usize, keys: Keys<'_, T>, scores: &mut [f32], width: usize,
            ) {
                assert!(dim > 0 && queries.len() / dim * width <= scores.len(), "a row of scores for a query");
                for Column { from, at } in keys.columns {
                    assert!(from + (dim - 1) * keys.stride + LANES <= keys.keys.len(), "all dimensions of the keys");
                    assert!(at + LANES <= width, "a place for the scores");
                }
                #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                // SAFETY: chosen where the processor has these instructions; sizes were checked.
                unsafe { score_tiles(queries, dim, keys, scores, width) }
            }

            $(#[$feature])?
            fn score_tiles<T: Element>(
                queries: &[f32], dim: usize, keys: Keys<'_, T>, scores: &mut [f32], width: usize,
            ) {
                tiled!(score_tile, $few, $wide, queries.len() / dim, keys.columns.len(),
                       (queries, dim, keys, scores, width));
            }

            $(#[$feature])?
            #[inline]
            fn score_tile<T: Element, const R: usize, const V: usize>(
                row: usize, first: usize,
                queries: &[f32], dim: usize, all: Keys<'_, T>, scores: &mut [f32], width: usize,
            ) {
                let columns: &[Column; V] = all.columns[first..][..V].try_into().expect("V columns");
                let ahead = all.ahead.as_ptr();
                let mut sums = [[zero(); V]; R];
                // SAFETY: the sizes that `score` checked.
                unsafe {
                    let queries = queries.as_ptr().add(row * dim);
                    for d in 0..dim {
                        let mut keys = [zero(); V];
                        for at in 0..V {
                            let place = columns[at].from + d * all.stride;
                            keys[at] = load_stored(all.keys.as_ptr().add(place));
                            if row == 0 {
                                prefetch_line(ahead.wrapping_add(place));
                            }
                        }
                        for r in 0..R {
                            let query = splat(*queries.add(r * dim + d));
                            for at in 0..V {
                                sums[r][at] = fused(query, keys[at], sums[r][at]);
                            }
                        }
                    }
                    for r in 0..R {
                        for at in 0..V {
                            store(scores.as_mut_ptr().add((row + r) * width + columns[at].at), sums[r][at]);
                        }
                    }
                }
            }

            pub fn soften(scores: &mut [f32], visible: Range<usize>, running: &mut Running) -> f32 {
                assert!(visible.end <= scores.len() && scores.len().is_multiple_of(LANES), "a row of scores");
                #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                // SAFETY: chosen where the processor has these instructions.
                unsafe { soften_row(scores, visible, running) }
            }

            $(#[$feature])?
            fn soften_row(scores: &mut [f32], visible: Range<usize>, running: &mut Running) -> f32 {
                if visible.is_empty() {
                    scores.fill(0.0);
                    return 1.0;
                }
                // Whole registers; what is not visible in them weighs nothing.
                let seen = visible.start / LANES * LANES..visible.end.next_multiple_of(LANES);
                scores[..seen.start].fill(0.0);
                scores[seen.start..visible.start].fill(f32::NEG_INFINITY);
                scores[visible.end..seen.end].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(0.0);
                let mut lanes = [0.0f32; LANES];
                let row = scores.as_mut_ptr();
                // SAFETY: registers of `scores` and of `lanes`.
                unsafe {
                    let mut maxima = splat(running.maximum);
                    for at in seen.clone().step_by(LANES) {
                        maxima = larger(load(row.add(at)), maxima);
                    }
                    store(lanes.as_mut_ptr(), maxima);
                    let maximum = lanes.into_iter().fold(running.maximum, f32::max);
                    let mut sums = zero();
                    for at in seen.step_by(LANES) {
                        let weights = exp(minus(load(row.add(at)), splat(maximum)));
                        store(row.add(at), weights);
                        sums = plus(sums, weights);
                    }
                    store(lanes.as_mut_ptr(), sums);
                    let mut factor = [0.0f32; LANES];
                    store(factor.as_mut_ptr(), exp(splat(running.maximum - maximum)));
                    running.sum = running.sum * factor[0] + lanes.iter().sum::<f32>();
                    running.maximum = maximum;
                    factor[0]
                }
            }

            pub fn weigh<T: Element>(
                weights: &[f32], width: usize, values: Values<'_, T>, output: &mut [f32], dim: usize,
            ) {
                assert!(dim > 0 && dim.is_multiple_of(LANES), "whole registers");
                assert!(output.len() / dim * width <= weights.len(), "a row of weights for a row of output");
                assert!(dim <= values.stride, "tokens apart from each other");
                for Span { from, tokens, at, .. } in values.spans {
                    let end = from + tokens.saturating_sub(1) * values.stride + dim;
                    assert!(end <= values.values.len(), "values of each token");
                    assert!(at + tokens <= width, "a weight for each token");
                }
                #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                // SAFETY: chosen where the processor has these instructions; sizes were checked.
                unsafe { weigh_tiles(weights, width, values, output, dim) }
            }

            $(#[$feature])?
            fn weigh_tiles<T: Element>(
                weights: &[f32], width: usize, values: Values<'_, T>, output: &mut [f32], dim: usize,
            ) {
                tiled!(weigh_tile, $few, $wide, output.len() / dim, dim / LANES,
                       (weights, width, values, output, dim));
            }

            $(#[$feature])?
            #[inline]
            fn weigh_tile<T: Element, const R: usize, const V: usize>(
                row: usize, first: usize,
                weights: &[f32], width: usize, all: Values<'_, T>, output: &mut [f32], dim: usize,
            ) {
                let mut sums = [[zero(); V]; R];
                // SAFETY: the sizes that `weigh` checked.
                unsafe {
                    let output = output.as_mut_ptr().add(row * dim + first * LANES);
                    for r in 0..R {
                        for at in 0..V {
                            sums[r][at] = load(output.add(r * dim + at * LANES));
                        }
                    }
                    for span in all.spans {
                        let weights = weights.as_ptr().add(row * width + span.at);
                        let values = all.values.as_ptr().add(span.from + first * LANES);
                        let ahead = all.ahead.as_ptr().wrapping_add(span.next + first * LANES);
                        for token in 0..span.tokens {
                            let mut value = [zero(); V];
                            for at in 0..V {
                                let place = token * all.stride + at * LANES;
                                value[at] = load_stored(values.add(place));
                                if row == 0 && (at * LANES * size_of::<T>()).is_multiple_of(CACHE_LINE) {
                                    prefetch_line(ahead.wrapping_add(place));
                                }
                            }
                            for r in 0..R {
                                let weight = splat(*weights.add(r * width + token));
                                for at in 0..V {
                                    sums[r][at] = fused(weight, value[at], sums[r][at]);
                                }
                            }
                        }
                    }
                    for r in 0..R {
                        for at in 0..V {
                            store(output.add(r * dim + at * LANES), sums[r][at]);
                        }
                    }
                }
            }
        }
    };
}

loops!(portable, [], 1, 1);
#[cfg(target_arch = "x86_64")]
loops!(avx2, [target_feature(enable = "avx2,fma")], 4, 2);
#[cfg(target_arch = "x86_64")]
loops!(avx512, [target_feature(enable = "avx512f,avx512bw,avx512vl")], 8, 4);
