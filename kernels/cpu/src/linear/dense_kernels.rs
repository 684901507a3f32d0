//! Tiles of a product with dense weights, in each instruction set.
//!
//! A tile is a few rows of x and a panel of weights. Its sums stay in registers from the first line to the last: per
//! line, the panel's weights are read once and serve every row of the tile.
//!
//! ```text
//!            x[0] x[1] x[2] ...        floats  a line holds an input's weights
//!  line 0  │ w w w w ... (WIDTH) │     pairs   a line holds two inputs' weights, the even one in the low half
//!  line 1  │ w w w w ...         │
//! ```
//!
//! Each output is one chain of fused additions, the same in every instruction set. [`Tile`]s of float32 rows add
//! inputs in their order. bfloat16 rows add the odd input of a pair before the even one, as AVX-512's `dpbf16` does.
//! The product of two bfloat16 numbers is exact in float32, so the results are those of `dpbf16` bit for bit, but
//! that it takes subnormal numbers for zero.

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use half::bf16;

use super::panels::{Line, WIDTH};
use crate::isa::InstructionSet;
use crate::math::{CACHE_LINE, prefetch_line};

/// Some rows of x, and the weights of a panel for some inputs, or all weights of several panels.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a, W, X> {
    /// The weights, panel by panel.
    pub lines: &'a [Line<W>],
    /// How many panels these are.
    pub panels: usize,
    /// The tile's first row, from the input of the first line on.
    pub x: &'a [X],
    /// Elements of `x` from row to row.
    pub stride: usize,
    /// Lines that will be wanted next: the memory is asked for them little by little, so that it works while the
    /// processor multiplies. Tiles of one row or two leave it no time and ask for none.
    pub ahead: &'a [Line<W>],
}

impl<W, X> Tile<'_, W, X> {
    /// Asks for the part of [`Tile::ahead`] that is due with a line: `share` lines of the cache.
    #[inline(always)]
    fn ask(&self, line: usize, share: usize) {
        let ahead = self.ahead.as_ptr_range();
        for at in line * share..(line + 1) * share {
            let at = ahead.start.wrapping_byte_add(at * CACHE_LINE);
            if at < ahead.end {
                prefetch_line(at);
            }
        }
    }

    /// Lines of the cache to ask for with each line: all are asked for by the last.
    fn share(&self) -> usize {
        size_of_val(self.ahead).div_ceil(CACHE_LINE).div_ceil(self.lines.len().max(1))
    }

    /// How many rows there are sums of. Kernels read without further checks.
    fn rows(&self, sums: usize, inputs_per_line: usize) -> usize {
        let (rows, inputs) = (sums / self.panels, self.lines.len() / self.panels * inputs_per_line);
        assert!(rows > 0 && sums == rows * self.panels, "as many sums of every panel");
        assert!((rows - 1) * self.stride + inputs <= self.x.len(), "rows of all inputs");
        rows
    }
}

/// Adds a tile's products to the sums of its rows.
#[derive(Clone, Copy)]
pub struct Kernel<W, X> {
    /// Most panels of a tile, by its number of rows less one: a power of two, and less are as well. Rows are at most
    /// as many as these.
    ///
    /// A core waits for memory with each stream of lines by itself, so several bring more of it at a time than one.
    pub most_panels: &'static [usize],
    /// Adds, for as many rows as there are sums of each panel; sums are \[panels, rows\].
    pub add: fn(Tile<'_, W, X>, &mut [Line<f32>]),
}

impl<W, X> Kernel<W, X> {
    /// Most rows of a tile.
    pub fn most_rows(&self) -> usize {
        self.most_panels.len()
    }
}

/// The kernel of this name for an instruction set.
macro_rules! kernel_for {
    ($set:expr, $name:ident) => {
        match $set {
            #[cfg(target_arch = "x86_64")]
            set if set >= InstructionSet::Avx512 => {
                Kernel { most_panels: avx512::PANELS, add: avx512::$name }
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 | InstructionSet::AvxVnni => {
                Kernel { most_panels: avx2::PANELS, add: avx2::$name }
            }
            _ => Kernel { most_panels: portable::PANELS, add: portable::$name },
        }
    };
}

/// float32 rows and weights.
pub fn floats(set: InstructionSet) -> Kernel<f32, f32> {
    kernel_for!(set, floats)
}

/// float32 rows and pairs of bfloat16 weights, the odd one of a pair first, as bfloat16 rows are summed, or not.
pub fn pairs(set: InstructionSet, odd_first: bool) -> Kernel<u32, f32> {
    if odd_first { kernel_for!(set, pairs_odd_first) } else { kernel_for!(set, pairs) }
}

/// bfloat16 rows and pairs of bfloat16 weights, where the machine multiplies them; elsewhere rows are widened for
/// [`pairs`].
pub fn dot_pairs(set: InstructionSet) -> Option<Kernel<u32, bf16>> {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Bf16 => {
            Some(Kernel { most_panels: avx512::PANELS, add: avx512::dot_pairs_of_rows })
        }
        _ => None,
    }
}

/// One kernel: `$step` adds one line to the sums of `R` rows. It is a block and no function, so that the sums stay in
/// registers.
macro_rules! kernel {
    ($name:ident, $tile:ident, $weight:ty, $x:ty, $inputs:literal, [$($feature:meta)?],
     { $($rows:literal x $panels:literal => $registers:literal),* },
     |$weights:ident, $from:ident, $stride:ident, $chains:ident| $step:block) => {
        pub fn $name(tile: Tile<'_, $weight, $x>, sums: &mut [Line<f32>]) {
            let rows = tile.rows(sums.len(), $inputs);
            #[allow(unused_unsafe, reason = "portable kernels are safe to call")]
            // SAFETY: this kernel is chosen where the processor has these instructions.
            unsafe {
                match (rows, tile.panels) {
                    $(($rows, $panels) => $tile::<$rows, $panels, $registers>(tile, sums),)*
                    _ => unreachable!("tiles are as `PANELS` says"),
                }
            }
        }

        $(#[$feature])?
        fn $tile<const R: usize, const P: usize, const V: usize>(
            tile: Tile<'_, $weight, $x>, sums: &mut [Line<f32>],
        ) {
            let (lines, x) = (tile.lines.as_ptr().cast::<$weight>(), tile.x.as_ptr());
            let (per_panel, share) = (tile.lines.len() / P, tile.share());
            for part in 0..WIDTH / (V * LANES) {
                let lane = part * V * LANES;
                let mut all = [[[zero(); V]; R]; P];
                for panel in 0..P {
                    for row in 0..R {
                        let from = sums[panel * R + row].0[lane..].as_ptr();
                        for at in 0..V {
                            // SAFETY: from `lane` on, a line has `V` registers.
                            all[panel][row][at] = unsafe { load(from.add(at * LANES)) };
                        }
                    }
                }
                for line in 0..per_panel {
                    if R > 2 && share > 0 {
                        tile.ask(line, share);
                    }
                    for panel in 0..P {
                        let $chains = &mut all[panel];
                        // SAFETY: there are so many lines, with `V` registers each from `lane` on; and rows of so
                        // many inputs, as was checked.
                        unsafe {
                            let place = (panel * per_panel + line) * WIDTH + lane;
                            let ($weights, $from, $stride) = (lines.add(place), x.add(line * $inputs), tile.stride);
                            $step
                        }
                    }
                }
                for panel in 0..P {
                    for row in 0..R {
                        let to = sums[panel * R + row].0[lane..].as_mut_ptr();
                        for at in 0..V {
                            // SAFETY: as they were loaded.
                            unsafe { store(to.add(at * LANES), all[panel][row][at]) };
                        }
                    }
                }
            }
        }
    };
}

/// The kernels of one instruction set, from its operations on registers: for each number of rows and panels how many
/// registers of a line are summed at once, so that all sums fit the registers.
macro_rules! kernels {
    ([$($feature:meta)?], $most:expr, { $($rows:literal x $panels:literal => $registers:literal),* $(,)? }) => {
        /// See `most_panels` of a kernel.
        pub const PANELS: &[usize] = &$most;

        kernel!(floats, floats_tile, f32, f32, 1, [$($feature)?], { $($rows x $panels => $registers),* },
                |weights, x, stride, chains| {
            let mut line = [zero(); V];
            for at in 0..V {
                line[at] = load(weights.add(at * LANES));
            }
            for row in 0..R {
                let x = splat(*x.add(row * stride));
                for at in 0..V {
                    chains[row][at] = fused(x, line[at], chains[row][at]);
                }
            }
        });

        kernel!(pairs, pairs_tile, u32, f32, 2, [$($feature)?], { $($rows x $panels => $registers),* },
                |weights, x, stride, chains| { pairs!([0, 1], weights, x, stride, chains); });

        kernel!(pairs_odd_first, odd_first_tile, u32, f32, 2, [$($feature)?], { $($rows x $panels => $registers),* },
                |weights, x, stride, chains| { pairs!([1, 0], weights, x, stride, chains); });
    };
}

/// Adds both inputs of a pair, in this order.
macro_rules! pairs {
    ($order:expr, $weights:ident, $x:ident, $stride:ident, $chains:ident) => {
        for place in $order {
            let mut line = [zero(); V];
            for at in 0..V {
                let pairs = load_words($weights.add(at * LANES));
                line[at] = if place == 1 { widen_high(pairs) } else { widen_low(pairs) };
            }
            for row in 0..R {
                let x = splat(*$x.add(row * $stride + place));
                for at in 0..V {
                    $chains[row][at] = fused(x, line[at], $chains[row][at]);
                }
            }
        }
    };
}

/// The sums of some rows of a panel stay in the registers that the compiler has.
mod portable {
    use super::{Line, Tile, WIDTH};
    use crate::registers::portable::*;

    kernels!([], [1; 4], { 1 x 1 => 2, 2 x 1 => 2, 3 x 1 => 1, 4 x 1 => 1 });
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Line, Tile, WIDTH};
    use crate::registers::avx2::*;

    kernels!([target_feature(enable = "avx2,fma")], [1; 2], { 1 x 1 => 4, 2 x 1 => 4 });
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Line, Tile, WIDTH};
    use crate::registers::avx512_bf16::*;
    use half::bf16;

    kernels!([target_feature(enable = "avx512f")], [4, 2, 1, 1, 1, 1],
             { 1 x 1 => 4, 1 x 2 => 4, 1 x 4 => 4, 2 x 1 => 4, 2 x 2 => 4, 3 x 1 => 4, 4 x 1 => 4, 5 x 1 => 4, 6 x 1 => 4 });

    kernel!(dot_pairs_of_rows, dot_pairs_tile, u32, bf16, 2, [target_feature(enable = "avx512f,avx512bf16")],
            { 1 x 1 => 4, 1 x 2 => 4, 1 x 4 => 4, 2 x 1 => 4, 2 x 2 => 4, 3 x 1 => 4, 4 x 1 => 4, 5 x 1 => 4, 6 x 1 => 4 },
            |weights, x, stride, chains| {
        let mut line = [splat_integer(0); V];
        for at in 0..V {
            line[at] = load_words(weights.add(at * LANES));
        }
        for row in 0..R {
            // Two numbers, of whatever alignment.
            let x = splat_integer(x.add(row * stride).cast::<i32>().read_unaligned());
            for at in 0..V {
                chains[row][at] = dot_pairs(chains[row][at], line[at], x);
            }
        }
    });
}
