//! The inner loops of recurrences, in each instruction set: a tile is some columns of a matrix, and lanes are columns.
//!
//! Each number is one chain of operations in the order of the matrix's rows, but what the delta rule reads by the key,
//! which is two: of even rows and of odd ones. So results do not depend on how wide a tile is.

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use super::token::{MAX_COLUMNS, Token};
use crate::isa::InstructionSet;

/// The loops of one instruction set.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Columns of a tile.
    pub columns: usize,
    /// How wide the rows of a tile of some columns are: whole registers.
    pub width: fn(usize) -> usize,
    /// Fills a tile from a matrix whose rows are a stride apart: matrix, stride, columns, tile.
    pub load: fn(&[f32], usize, usize, &mut [f32]),
    /// Writes it back: tile, columns, matrix, stride.
    pub save: fn(&[f32], usize, &mut [f32], usize),
    /// Takes in a token whose values begin at a column, and writes what its query reads.
    pub step: fn(&mut [f32], &Token, usize, &mut [f32]),
}

/// The loops of the delta rule, or of the decaying sum.
pub fn tiles(set: InstructionSet, delta: bool) -> Tiles {
    macro_rules! of {
        ($module:ident) => {
            Tiles {
                columns: $module::COLUMNS,
                width: $module::width,
                load: $module::load,
                save: $module::save,
                step: if delta { $module::step::<true> } else { $module::step::<false> },
            }
        };
    }
    match set {
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx512 => of!(avx512),
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx2 => of!(avx2),
        _ => of!(portable),
    }
}

macro_rules! loops {
    ($module:ident, [$($feature:meta)?]) => {
        mod $module {
            use super::*;
            use crate::registers::$module as registers;
            use crate::registers::$module::{LANES, fused, minus, plus, splat, store, times, zero};

            /// Four registers.
            pub const COLUMNS: usize = 4 * LANES;
            const _: () = assert!(COLUMNS <= MAX_COLUMNS);

            pub fn width(columns: usize) -> usize {
                columns.div_ceil(LANES).next_power_of_two() * LANES
            }

            pub fn load(matrix: &[f32], stride: usize, columns: usize, tile: &mut [f32]) {
                let width = width(columns);
                assert!(columns <= stride && matrix.len() + stride >= tile.len() / width * stride + columns);
                if width == columns {
                    #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                    // SAFETY: chosen where the processor has these instructions; sizes were checked.
                    return unsafe { copy(matrix, stride, tile, width, width) };
                }
                for (to, from) in tile.chunks_exact_mut(width).zip(matrix.chunks(stride)) {
                    to[..columns].copy_from_slice(&from[..columns]);
                    to[columns..].fill(0.0);
                }
            }

            pub fn save(tile: &[f32], columns: usize, matrix: &mut [f32], stride: usize) {
                let width = width(columns);
                assert!(columns <= stride && matrix.len() + stride >= tile.len() / width * stride + columns);
                if width == columns {
                    #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                    // SAFETY: as in `load`.
                    return unsafe { copy(tile, width, matrix, stride, width) };
                }
                for (to, from) in matrix.chunks_mut(stride).zip(tile.chunks_exact(width)) {
                    to[..columns].copy_from_slice(&from[..columns]);
                }
            }

            $(#[$feature])?
            fn copy(from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize, width: usize) {
                let rows = (from.len() + from_stride - width) / from_stride;
                let rows = rows.min((to.len() + to_stride - width) / to_stride);
                for row in 0..rows {
                    for at in (0..width).step_by(LANES) {
                        // SAFETY: the row ends inside of both slices, as there are as many.
                        unsafe {
                            let numbers = registers::load(from.as_ptr().add(row * from_stride + at));
                            store(to.as_mut_ptr().add(row * to_stride + at), numbers);
                        }
                    }
                }
            }

            pub fn step<const DELTA: bool>(tile: &mut [f32], token: &Token, first: usize, sums: &mut [f32]) {
                let Token { query, key, decay, decayed_key, value, .. } = token;
                let (rows, width) = (key.len(), sums.len());
                assert!(tile.len() == rows * width && width <= COLUMNS, "a tile of these rows");
                assert!([query, decay, decayed_key].iter().all(|numbers| numbers.len() == rows), "a number a row");
                assert!(first + width <= value.len(), "a value for each column");
                #[allow(unused_unsafe, reason = "portable loops are safe to call")]
                // SAFETY: chosen where the processor has these instructions; sizes were checked.
                unsafe {
                    match width / LANES {
                        1 => take_in::<1, DELTA>(tile, token, first, sums),
                        2 => take_in::<2, DELTA>(tile, token, first, sums),
                        4 => take_in::<4, DELTA>(tile, token, first, sums),
                        _ => unreachable!("a width that `width` gave"),
                    }
                }
            }

            $(#[$feature])?
            fn take_in<const R: usize, const DELTA: bool>(
                tile: &mut [f32], token: &Token, first: usize, sums: &mut [f32],
            ) {
                let rows = token.key.len();
                let (query, key) = (token.query.as_ptr(), token.key.as_ptr());
                let (decay, decayed_key) = (token.decay.as_ptr(), token.decayed_key.as_ptr());
                let tile = tile.as_mut_ptr();
                // SAFETY: the sizes that `step` checked.
                unsafe {
                    let value = token.value.as_ptr().add(first);
                    let mut taken = [zero(); R];
                    for r in 0..R {
                        taken[r] = registers::load(value.add(r * LANES));
                    }
                    if DELTA {
                        let mut read = [[zero(); R]; 2];
                        for row in 0..rows / 2 {
                            for odd in 0..2 {
                                let at = 2 * row + odd;
                                let key = splat(*decayed_key.add(at));
                                for r in 0..R {
                                    let state = registers::load(tile.add((at * R + r) * LANES));
                                    read[odd][r] = fused(key, state, read[odd][r]);
                                }
                            }
                        }
                        if rows % 2 == 1 {
                            let key = splat(*decayed_key.add(rows - 1));
                            for r in 0..R {
                                let state = registers::load(tile.add(((rows - 1) * R + r) * LANES));
                                read[0][r] = fused(key, state, read[0][r]);
                            }
                        }
                        for r in 0..R {
                            taken[r] = minus(taken[r], plus(read[0][r], read[1][r]));
                        }
                    }
                    for r in 0..R {
                        taken[r] = times(splat(token.rate), taken[r]);
                    }
                    let mut out = [zero(); R];
                    for row in 0..rows {
                        let (decay, key) = (splat(*decay.add(row)), splat(*key.add(row)));
                        let query = splat(*query.add(row));
                        for r in 0..R {
                            let at = tile.add((row * R + r) * LANES);
                            let state = fused(decay, registers::load(at), times(key, taken[r]));
                            store(at, state);
                            out[r] = fused(query, state, out[r]);
                        }
                    }
                    for r in 0..R {
                        store(sums.as_mut_ptr().add(r * LANES), out[r]);
                    }
                }
            }
        }
    };
}

loops!(portable, []);
#[cfg(target_arch = "x86_64")]
loops!(avx2, [target_feature(enable = "avx2,fma")]);
#[cfg(target_arch = "x86_64")]
loops!(avx512, [target_feature(enable = "avx512f")]);
