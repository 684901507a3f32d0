//! Tiles of a product with quantized weights, in each instruction set.
//!
//! ```text
//!  for each group   integer sums = offset of the row
//!                   for each line: four products of bytes at a time (VNNI), or their two steps (AVX2)
//!                   sum = fused(integer sum, scale of the output * scale of the row, sum)
//!                   sum = fused(minimum, minus the weighted sum of the row, sum)    if there are minimums
//! ```
//!
//! Integer sums are exact and float32 sums go group by group, so results are the same bits in every instruction set.

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use std::ops::Range;

use super::activations::Activations;
use super::packed::{DOUBLED, Packed};
use super::panels::{Line, WIDTH};
use crate::isa::InstructionSet;

/// Some rows of activations, and a panel of weights.
#[derive(Debug, Clone)]
pub struct Tile<'a> {
    /// The weights.
    pub packed: &'a Packed,
    /// The panel.
    pub panel: usize,
    /// The rows.
    pub x: &'a Activations,
    /// The first row.
    pub row: usize,
    /// Groups that will be wanted next, of all panels' one behind the other: the memory is asked for their lines.
    pub ahead: Range<usize>,
}

impl Tile<'_> {
    /// Kernels read without further checks.
    fn check(&self, rows: usize, scales: usize) {
        let Packed { lines, minimums, group, groups, .. } = self.packed;
        let (panels, end) = (self.panel + 1, self.row + rows);
        assert!(panels * self.packed.per_panel() <= lines.len() && panels * groups <= scales, "a panel");
        assert!(minimums.is_empty() || panels * groups <= minimums.len(), "minimums of a panel");
        let Activations { values, scales, offsets, weights } = self.x;
        assert!(end * groups * group <= values.len() && end * groups <= scales.len(), "rows of activations");
        assert!(end * groups <= offsets.len() && end * groups <= weights.len(), "rows of activations");
    }
}

/// Adds a tile's products to the sums of its rows.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Most rows of a tile.
    pub most_rows: usize,
    /// What it subtracts from every value by itself.
    pub zero: i32,
    /// Adds, for as many rows as there are sums.
    pub add: fn(Tile<'_>, &mut [Line<f32>]),
}

/// The kernel of an instruction set for the values of `packed`.
pub fn kernel(set: InstructionSet, packed: &Packed) -> Kernel {
    macro_rules! of {
        ($module:ident, $zero:literal) => {
            match packed.bits {
                4 if packed.is_microscaled() => {
                    Kernel { most_rows: $module::ROWS, zero: 0, add: $module::microscaled }
                }
                4 => Kernel { most_rows: $module::ROWS, zero: 0, add: $module::halves },
                _ => Kernel { most_rows: $module::ROWS, zero: $zero, add: $module::bytes },
            }
        };
    }
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Vnni | InstructionSet::Avx512Bf16 => of!(avx512_vnni, 0),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::AvxVnni => of!(avx_vnni, 0),
        // Without VNNI AVX-512 would gain little.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx512 => of!(avx2, 128),
        _ => of!(portable, 0),
    }
}

/// One kernel: `$step` adds `$count` lines of weights, at most `$most`, to the integer sums; `$load` reads scales of
/// the type `$scale` from the packed weights' `$scales`.
macro_rules! kernel {
    ($name:ident, $tile:ident, $inputs:literal, $scales:ident: $scale:ident by $load:ident, [$($feature:meta)?], { $($rows:literal => $registers:literal),* },
     $most:literal, |$line:ident, $count:ident, $x:ident, $stride:ident, $sums:ident| $step:block) => {
        pub fn $name(tile: Tile<'_>, sums: &mut [Line<f32>]) {
            tile.check(sums.len(), tile.packed.$scales.len());
            #[allow(unused_unsafe, reason = "portable kernels are safe to call")]
            // SAFETY: this kernel is chosen where the processor has these instructions.
            unsafe {
                match sums.len() {
                    $($rows => $tile::<$rows, $registers>(tile, sums),)*
                    _ => unreachable!("a tile has at most {ROWS} rows"),
                }
            }
        }

        $(#[$feature])?
        fn $tile<const R: usize, const V: usize>(tile: Tile<'_>, out: &mut [Line<f32>]) {
            let Tile { packed, panel, x: rows, row: first, ahead } = tile;
            let (group, groups) = (packed.group, packed.groups);
            let per_group = group / $inputs;
            let parts = WIDTH / (V * LANES);
            let lines_ahead = ahead.start * per_group..ahead.end * per_group;
            let mut lines_ahead = crate::math::Ahead::within(parts * groups, packed.lines.get(lines_ahead).unwrap_or(&[]));
            let mut scales_ahead = crate::math::Ahead::within(parts * groups, packed.$scales.get(ahead).unwrap_or(&[]));
            let $stride = groups * group;
            // SAFETY: a panel of lines, scales and minimums and so many rows of activations are there, as was
            // checked; from `lane` on, a line has `V` registers.
            unsafe {
                let lines = packed.lines.as_ptr().add(panel * groups * per_group).cast::<u32>();
                let scales = packed.$scales.as_ptr().add(panel * groups).cast::<$scale>();
                let minimums = match packed.minimums.is_empty() {
                    true => None,
                    false => Some(packed.minimums.as_ptr().add(panel * groups).cast::<f32>()),
                };
                let values = rows.values.as_ptr().add(first * $stride);
                for part in 0..parts {
                    let lane = part * V * LANES;
                    let mut totals = [[zero(); V]; R];
                    for row in 0..R {
                        for at in 0..V {
                            totals[row][at] = load(out[row].0.as_ptr().add(lane + at * LANES));
                        }
                    }
                    for index in 0..groups {
                        // Tiles of fewer rows come alone, and ask for nothing.
                        if 2 * R >= ROWS {
                            lines_ahead.ask();
                            scales_ahead.ask();
                        }
                        let mut $sums = [[splat_integer(0); V]; R];
                        for row in 0..R {
                            let offset = *rows.offsets.as_ptr().add((first + row) * groups + index);
                            $sums[row] = [splat_integer(offset); V];
                        }
                        let mut at = 0;
                        while at < per_group {
                            let $count = usize::min($most, per_group - at);
                            let $line = lines.add((index * per_group + at) * WIDTH + lane);
                            let $x = values.add(index * group + at * $inputs);
                            $step
                            at += $most;
                        }
                        for row in 0..R {
                            let place = (first + row) * groups + index;
                            let of_row = splat(*rows.scales.as_ptr().add(place));
                            for at in 0..V {
                                let of_output = $load(scales.add(index * WIDTH + lane + at * LANES));
                                let factor = times(of_output, of_row);
                                totals[row][at] = fused(to_floats($sums[row][at]), factor, totals[row][at]);
                            }
                        }
                        if let Some(minimums) = minimums {
                            for row in 0..R {
                                let place = (first + row) * groups + index;
                                let weight = splat(*rows.weights.as_ptr().add(place));
                                for at in 0..V {
                                    let minimum = load(minimums.add(index * WIDTH + lane + at * LANES));
                                    totals[row][at] = fused(minimum, weight, totals[row][at]);
                                }
                            }
                        }
                    }
                    for row in 0..R {
                        for at in 0..V {
                            store(out[row].0.as_mut_ptr().add(lane + at * LANES), totals[row][at]);
                        }
                    }
                }
            }
        }
    };
}

/// A kernel of values of 4 bits, of which `$decode` makes bytes; one instruction adds their products.
macro_rules! half_kernel {
    ($name:ident, $tile:ident, $scales:ident: $scale:ident by $load:ident, $most:literal, |$codes:ident| $decode:expr, $features:tt, $tiles:tt) => {
        kernel!($name, $tile, 8, $scales: $scale by $load, $features, $tiles, 1, |line, _count, x, stride, sums| {
            let mut weights = [splat_integer(0); V];
            for at in 0..V {
                weights[at] = load_words(line.add(at * LANES));
            }
            for half in 0..2 {
                let mut values = [splat_integer(0); V];
                for at in 0..V {
                    let $codes = if half == 0 { low_halves(weights[at]) } else { high_halves(weights[at]) };
                    values[at] = $decode;
                }
                for row in 0..R {
                    let x = splat_integer(x.add(row * stride + half * 4).cast::<i32>().read_unaligned());
                    for at in 0..V {
                        sums[row][at] = dot_bytes(sums[row][at], values[at], x);
                    }
                }
            }
        });
    };
}

/// The same where products of bytes are summed in 16 bits: the products of `$most` lines do not overflow them.
#[cfg(target_arch = "x86_64")]
macro_rules! half_kernel_by_pairs {
    ($name:ident, $tile:ident, $scales:ident: $scale:ident by $load:ident, $most:literal, |$codes:ident| $decode:expr, $features:tt, $tiles:tt) => {
        kernel!($name, $tile, 8, $scales: $scale by $load, $features, $tiles, $most, |line, count, x, stride, sums| {
            let mut pairs = [[splat_integer(0); V]; R];
            for next in 0..count {
                for at in 0..V {
                    let weights = load_words(line.add(next * WIDTH + at * LANES));
                    let $codes = low_halves(weights);
                    let low = $decode;
                    let $codes = high_halves(weights);
                    let high = $decode;
                    for row in 0..R {
                        let x = x.add(row * stride + next * 8).cast::<i32>();
                        let (first, second) = (x.read_unaligned(), x.add(1).read_unaligned());
                        pairs[row][at] = dot_pairs(pairs[row][at], low, splat_integer(first));
                        pairs[row][at] = dot_pairs(pairs[row][at], high, splat_integer(second));
                    }
                }
            }
            for row in 0..R {
                for at in 0..V {
                    sums[row][at] = plus_pairs(sums[row][at], pairs[row][at]);
                }
            }
        });
    };
}

/// The kernels of one instruction set, from its operations on registers: for each number of rows how many registers
/// of a line are summed at once.
macro_rules! kernels {
    ([$($feature:meta)?], $half_kernel:ident, $most:literal, { $($rows:literal => $registers:literal),* $(,)? }) => {
        /// Most rows of a tile.
        pub const ROWS: usize = $most;

        kernel!(bytes, bytes_tile, 4, scales: f32 by load, [$($feature)?], { $($rows => $registers),* }, 1, |line, _count, x, stride, sums| {
            let mut weights = [splat_integer(0); V];
            for at in 0..V {
                weights[at] = load_words(line.add(at * LANES));
            }
            for row in 0..R {
                let x = splat_integer(x.add(row * stride).cast::<i32>().read_unaligned());
                for at in 0..V {
                    sums[row][at] = dot_bytes(sums[row][at], weights[at], x);
                }
            }
        });

        $half_kernel!(halves, halves_tile, scales: f32 by load, 4, |values| values, [$($feature)?], { $($rows => $registers),* });

        $half_kernel!(microscaled, microscaled_tile, exponents: u8 by load_half_powers, 2,
                      |codes| looked_up(&DOUBLED, codes), [$($feature)?], { $($rows => $registers),* });
    };
}

mod portable {
    use super::{DOUBLED, Line, Tile, WIDTH};
    use crate::registers::portable::*;

    /// Rounded once, as everywhere: one call for a group.
    #[inline(always)]
    fn fused(a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|at| a[at].mul_add(b[at], c[at]))
    }

    kernels!([], half_kernel, 2, { 1 => 1, 2 => 1 });
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{DOUBLED, Line, Tile, WIDTH};
    use crate::registers::avx2::{dot_bytes_less_128 as dot_bytes, *};

    kernels!([target_feature(enable = "avx2,fma")], half_kernel_by_pairs, 4, { 1 => 4, 2 => 2, 3 => 2, 4 => 2 });
}

#[cfg(target_arch = "x86_64")]
mod avx_vnni {
    use super::{DOUBLED, Line, Tile, WIDTH};
    use crate::registers::avx_vnni::*;

    kernels!([target_feature(enable = "avx2,fma,avxvnni")], half_kernel, 4, { 1 => 4, 2 => 2, 3 => 1, 4 => 1 });
}

#[cfg(target_arch = "x86_64")]
mod avx512_vnni {
    use super::{DOUBLED, Line, Tile, WIDTH};
    use crate::registers::avx512_vnni::*;

    kernels!([target_feature(enable = "avx512f,avx512bw,avx512vnni")], half_kernel,
             6, { 1 => 4, 2 => 4, 3 => 4, 4 => 2, 5 => 2, 6 => 2 });
}
