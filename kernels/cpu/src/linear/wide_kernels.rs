//! Tiles of a product of many rows: a few rows, and a unit of weights that lies open in the nearest cache.
//!
//! ```text
//!             x for MOST_ROWS rows        opened: PART outputs
//!  input 0  │ x x x x x x │             │ w w w w ... │    2 registers of weights serve all rows of the tile
//!  input 1  │ x x x x x x │             │ w w w w ... │
//! ```
//!
//! While it multiplies, a tile opens some lines of the next unit: their stores and the waiting for memory cost next to
//! nothing between the multiplications. Each output is the chain of fused additions of [`super::dense_kernels`].

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use super::panels::{Line, WIDTH};
use crate::isa::InstructionSet;

/// Outputs of a unit.
pub const PART: usize = 16;

/// Least rows: for fewer, the memory is slower than the multiplications of [`super::dense_kernels`].
pub const LEAST_ROWS: usize = 3;

/// Most rows of a tile.
pub const MOST_ROWS: usize = 6;

/// The weights of a unit, input by input.
#[repr(align(64))]
pub struct Opened(pub [[f32; PART]; Self::INPUTS]);

impl Opened {
    /// Most inputs of a unit.
    pub const INPUTS: usize = 256;
    /// Nothing yet.
    pub const ZERO: Self = Self([[0.0; PART]; Self::INPUTS]);
}

/// A unit that is being opened.
pub struct Opening<'a, W> {
    lines: &'a [Line<W>],
    /// The lines that are open already.
    done: usize,
    lane: usize,
    /// The memory is asked for its line with each line that is opened.
    ahead: *const Line<W>,
    to: &'a mut Opened,
}

impl<'a, W> Opening<'a, W> {
    /// The outputs from `lane` on, for the inputs of these lines.
    ///
    /// # Panics
    /// There are more than a unit has.
    pub fn new(lines: &'a [Line<W>], lane: usize, ahead: &'a [Line<W>], to: &'a mut Opened) -> Self {
        assert!(lane + PART <= WIDTH && size_of_val(lines) <= Opened::INPUTS * size_of::<Line<W>>());
        Self { lines, done: 0, lane, ahead: ahead.as_ptr(), to }
    }

    /// No line at all.
    pub fn nothing(to: &'a mut Opened) -> Self {
        Self { lines: &[], done: 0, lane: 0, ahead: std::ptr::null(), to }
    }

    /// How many lines are still to be opened.
    pub fn left(&self) -> usize {
        self.lines.len() - self.done
    }
}

/// What is multiplied: `x` is \[inputs, rows of the tile\], `lane` the first output of `weights` in its panel.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub weights: &'a [[f32; PART]],
    pub x: &'a [f32],
    pub lane: usize,
}

impl Tile<'_> {
    /// Of no inputs.
    pub const EMPTY: Self = Self { weights: &[], x: &[], lane: 0 };
}

/// Adds tiles and opens units.
#[derive(Clone, Copy)]
pub struct Kernel<W> {
    /// Inputs of a line.
    pub inputs: usize,
    /// Input `at` of a line is the one with the number `at ^ flip` in an opened unit.
    pub flip: usize,
    /// Adds the products to the sums of the tile's rows, and opens so many lines, as far as there are.
    pub add: fn(Tile<'_>, &mut [Line<f32>], &mut Opening<'_, W>, usize),
}

/// float32 weights; nothing where the machine's kernels for few rows serve many as well.
pub fn floats(set: InstructionSet) -> Option<Kernel<f32>> {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::AvxVnni => {
            Some(Kernel { inputs: 1, flip: 0, add: avx2::floats })
        }
        _ => None,
    }
}

/// Pairs of bfloat16 weights, the odd one of a pair first or not; nothing as above.
pub fn pairs(set: InstructionSet, odd_first: bool) -> Option<Kernel<u32>> {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::AvxVnni => Some(Kernel {
            inputs: 2,
            flip: usize::from(odd_first),
            add: if odd_first { avx2::pairs_odd_first } else { avx2::pairs },
        }),
        _ => None,
    }
}

/// One kernel: `$open` opens `PART` outputs of one line.
macro_rules! kernel {
    ($name:ident, $tile:ident, $weight:ty, $inputs:literal, $feature:meta, |$from:ident, $to:ident| $open:block) => {
        pub fn $name(
            tile: Tile<'_>,
            sums: &mut [Line<f32>],
            opening: &mut Opening<'_, $weight>,
            share: usize,
        ) {
            let (inputs, rows) = (tile.weights.len(), sums.len());
            assert!(tile.x.len() == inputs * rows && tile.lane + PART <= WIDTH, "numbers of every row");
            assert!(opening.lines.len() * $inputs <= Opened::INPUTS, "a unit");
            let share = share.min(opening.left());
            // SAFETY: this kernel is chosen where the processor has these instructions.
            unsafe {
                match rows {
                    0 => $tile::<0>(tile, sums, opening, share),
                    1 => $tile::<1>(tile, sums, opening, share),
                    2 => $tile::<2>(tile, sums, opening, share),
                    3 => $tile::<3>(tile, sums, opening, share),
                    4 => $tile::<4>(tile, sums, opening, share),
                    5 => $tile::<5>(tile, sums, opening, share),
                    6 => $tile::<6>(tile, sums, opening, share),
                    _ => unreachable!("a tile has at most {MOST_ROWS} rows"),
                }
            }
        }

        #[$feature]
        fn $tile<const R: usize>(
            tile: Tile<'_>,
            sums: &mut [Line<f32>],
            opening: &mut Opening<'_, $weight>,
            share: usize,
        ) {
            const V: usize = PART / LANES;
            let mut all = [[zero(); V]; R];
            for row in 0..R {
                let from = sums[row].0[tile.lane..].as_ptr();
                for at in 0..V {
                    // SAFETY: from `lane` on, a line has `V` registers.
                    all[row][at] = unsafe { load(from.add(at * LANES)) };
                }
            }
            let mut $from = opening
                .lines
                .as_ptr()
                .wrapping_add(opening.done)
                .cast::<$weight>()
                .wrapping_add(opening.lane);
            let mut ahead =
                opening.ahead.wrapping_add(opening.done).cast::<$weight>().wrapping_add(opening.lane);
            let mut $to = opening.to.0.as_mut_ptr().wrapping_add(opening.done * $inputs).cast::<f32>();
            let (mut weights, mut x) = (tile.weights.as_ptr().cast::<f32>(), tile.x.as_ptr());
            let (mut inputs, mut lines) = (tile.weights.len(), share);
            let between = (inputs / share.max(1)).max(1);
            while inputs > 0 || lines > 0 {
                if lines > 0 {
                    // SAFETY: the line has `PART` weights from `lane` on, and the unit has room for its inputs.
                    unsafe { $open }
                    prefetch_line(ahead);
                    $from = $from.wrapping_add(WIDTH);
                    ahead = ahead.wrapping_add(WIDTH);
                    $to = $to.wrapping_add($inputs * PART);
                    lines -= 1;
                }
                let count = if lines > 0 { between.min(inputs) } else { inputs };
                for _ in 0..count {
                    // SAFETY: there are so many inputs of weights and rows.
                    unsafe {
                        let mut line = [zero(); V];
                        for at in 0..V {
                            line[at] = load(weights.add(at * LANES));
                        }
                        for row in 0..R {
                            let x = splat(*x.add(row));
                            for at in 0..V {
                                all[row][at] = fused(x, line[at], all[row][at]);
                            }
                        }
                        (weights, x) = (weights.add(PART), x.add(R));
                    }
                }
                inputs -= count;
            }
            opening.done += share;
            for row in 0..R {
                let to = sums[row].0[tile.lane..].as_mut_ptr();
                for at in 0..V {
                    // SAFETY: as they were loaded.
                    unsafe { store(to.add(at * LANES), all[row][at]) };
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Line, MOST_ROWS, Opened, Opening, PART, Tile, WIDTH};
    use crate::math::prefetch_line;
    use crate::registers::avx2::*;

    kernel!(floats, floats_tile, f32, 1, target_feature(enable = "avx2,fma"), |from, to| {
        for at in 0..V {
            store(to.add(at * LANES), load(from.add(at * LANES)));
        }
    });

    kernel!(pairs, pairs_tile, u32, 2, target_feature(enable = "avx2,fma"), |from, to| {
        for at in 0..V {
            let pairs = load_words(from.add(at * LANES));
            store(to.add(at * LANES), widen_low(pairs));
            store(to.add(PART + at * LANES), widen_high(pairs));
        }
    });

    kernel!(pairs_odd_first, odd_first_tile, u32, 2, target_feature(enable = "avx2,fma"), |from, to| {
        for at in 0..V {
            let pairs = load_words(from.add(at * LANES));
            store(to.add(at * LANES), widen_high(pairs));
            store(to.add(PART + at * LANES), widen_low(pairs));
        }
    });
}
