//! Products of a few rows with a large matrix: the linear layers of a model.
//!
//! ```text
//!  weights [outputs, inputs]  ──packed once──►  panels of WIDTH outputs, [inputs, WIDTH] each
//!
//!            x[m, 0] x[m, 1] ...        per input: the panel's WIDTH weights are read once,
//!  panel   ┌────────────────────┐       and serve every row m of the tile
//!  input 0 │ w w w w ... (WIDTH)│
//!  input 1 │ w w w w ...        │       a tile is as many rows and panels as fit the registers
//! ```
//!
//! Libraries are made for large matrices on both sides; here the rows are few (one for each sequence, and one more
//! for each draft token), and what counts is that each weight is read once, in order, for all of them.
//!
//! Each output is one chain of additions over the inputs in their order: a row's results are the same bits whatever
//! rows come with it, however many threads work. O(rows * inputs * outputs).

use std::ops::Range;

use crate::threads::{Shared, Threads};

/// Outputs in a panel.
const WIDTH: usize = 64;

/// Panels in a piece of work, when threads share it.
const PANELS: usize = 2;

/// One input's weights in a panel: whole lines of the cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([f32; WIDTH]);

/// The weights of a linear layer, laid out for [`linear`].
#[derive(Debug)]
pub struct Weights {
    lines: Vec<Line>,
    bias: Vec<Line>,
    inputs: usize,
    outputs: usize,
}

impl Weights {
    /// Packs `weight`, \[outputs, inputs\], and `bias`, \[outputs\] or nothing.
    ///
    /// # Panics
    /// The slices are not of this shape.
    pub fn new(weight: &[f32], bias: &[f32], inputs: usize, outputs: usize) -> Self {
        assert_eq!(weight.len(), inputs * outputs, "a weight for every input and output");
        assert!(bias.is_empty() || bias.len() == outputs, "a bias for every output");
        let panels = outputs.div_ceil(WIDTH);
        let mut lines = vec![Line([0.0; WIDTH]); panels * inputs];
        for (output, row) in weight.chunks_exact(inputs.max(1)).enumerate() {
            let panel = &mut lines[output / WIDTH * inputs..][..inputs];
            panel.iter_mut().zip(row).for_each(|(line, &weight)| line.0[output % WIDTH] = weight);
        }
        let mut padded = vec![Line([0.0; WIDTH]); panels];
        for (output, &bias) in bias.iter().enumerate() {
            padded[output / WIDTH].0[output % WIDTH] = bias;
        }
        Self { lines, bias: padded, inputs, outputs }
    }

    /// Elements of a row that goes in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Elements of a row that comes out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }
}

/// x W^T + b: `x` is \[rows, inputs\], `out` \[rows, outputs\].
///
/// # Panics
/// The slices do not have the same number of whole rows, or the machine is not [`supported`].
pub fn linear(threads: &Threads, weights: &Weights, x: &[f32], out: &mut [f32]) {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    if inputs == 0 || outputs == 0 {
        out.fill(0.0);
        return;
    }
    let rows = out.len() / outputs;
    assert!(out.len() == rows * outputs && x.len() == rows * inputs, "whole rows, as many in as out");
    let panels = weights.bias.len();
    let (kernel, most_rows) = kernel().expect("asked only where it is supported");
    let out = Shared::new(out);
    threads.share(panels.div_ceil(PANELS), rows * inputs * outputs, |piece| {
        let panels = piece * PANELS..panels.min((piece + 1) * PANELS);
        // All rows of a piece of the matrix before the next: it stays in the cache.
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            let count = left.div_ceil(left.div_ceil(most_rows));
            let x = &x[row * inputs..][..count * inputs];
            kernel(&Tile { weights, x, panels: panels.clone(), row, out: &out }, count);
            row += count;
        }
    });
}

/// Some rows of `x` and some panels of the weights.
struct Tile<'a> {
    weights: &'a Weights,
    x: &'a [f32],
    panels: Range<usize>,
    /// The first of its rows in `out`.
    row: usize,
    out: &'a Shared<'a, f32>,
}

impl Tile<'_> {
    fn lines(&self, panel: usize) -> &[Line] {
        &self.weights.lines[panel * self.weights.inputs..][..self.weights.inputs]
    }

    /// Writes what came out of the tile's row `row` for a panel, from its element `lane` on.
    #[inline(always)]
    fn store(&self, row: usize, panel: usize, lane: usize, values: &[f32]) {
        let outputs = self.weights.outputs;
        let first = panel * WIDTH + lane;
        let count = outputs.saturating_sub(first).min(values.len());
        // SAFETY: tiles are of different rows or panels.
        let out = unsafe { self.out.part((self.row + row) * outputs + first.min(outputs), count) };
        out.copy_from_slice(&values[..count]);
    }
}

/// Computes a tile of so many rows.
type Kernel = fn(&Tile<'_>, usize);

/// The kernel for this machine, and the most rows that it takes at once; `None` where there is none: then a library
/// does it as well.
fn kernel() -> Option<(Kernel, usize)> {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return Some((avx512::tile, avx512::ROWS));
        }
        if crate::math::has_fma() {
            return Some((avx2::tile, avx2::ROWS));
        }
    }
    None
}

/// Whether this machine has the instructions that [`linear`] needs.
pub fn supported() -> bool {
    kernel().is_some()
}

/// The kernel in one instruction set: how many lanes a register has, its four instructions, the most rows of a tile,
/// and for each number of rows how many registers of a line are summed at once, so that all sums fit the registers.
#[cfg(target_arch = "x86_64")]
macro_rules! instruction_set {
    ($module:ident, $features:literal, $lanes:literal, $load:ident, $broadcast:ident, $fused:ident, $store:ident,
     $most:literal, { $($rows:literal => $registers:literal),* $(,)? }) => {
        mod $module {
            use super::{Tile, WIDTH};
            use std::arch::x86_64::{$broadcast, $fused, $load, $store};

            const LANES: usize = $lanes;

            /// Most rows of a tile.
            pub const ROWS: usize = $most;

            pub fn tile(tile: &Tile<'_>, rows: usize) {
                // SAFETY: this kernel is chosen where the processor has these instructions.
                unsafe {
                    match rows {
                        $($rows => lines::<$rows, $registers>(tile),)*
                        _ => unreachable!("a tile has at most {ROWS} rows"),
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn lines<const R: usize, const V: usize>(tile: &Tile<'_>) {
                for panel in tile.panels.clone() {
                    for lane in (0..WIDTH).step_by(V * LANES) {
                        block::<R, V>(tile, panel, lane);
                    }
                }
            }

            /// `R` rows of `V` registers of a panel: all sums stay in registers, a chain for each output.
            #[target_feature(enable = $features)]
            fn block<const R: usize, const V: usize>(tile: &Tile<'_>, panel: usize, lane: usize) {
                let inputs = tile.weights.inputs;
                assert!(tile.x.len() == R * inputs && lane + V * LANES <= WIDTH, "so many rows and lanes");
                let bias = tile.weights.bias[panel].0[lane..].as_ptr();
                // SAFETY: from `lane` on, a line has `V` registers.
                let bias: [_; V] = std::array::from_fn(|at| unsafe { $load(bias.add(at * LANES)) });
                let mut sums = [bias; R];
                let lines = tile.lines(panel).as_ptr().cast::<f32>();
                let x = tile.x.as_ptr();
                for input in 0..inputs {
                    // SAFETY: a panel has a line for every input, with `V` registers from `lane` on.
                    let weights: [_; V] = std::array::from_fn(|at| unsafe {
                        $load(lines.add(input * WIDTH + lane + at * LANES))
                    });
                    for (row, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: `x` has `R` rows of `inputs`, by the check above.
                        let x = $broadcast(unsafe { *x.add(row * inputs + input) });
                        for (sum, weights) in sums.iter_mut().zip(&weights) {
                            *sum = $fused(x, *weights, *sum);
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    let mut values = [0.0; WIDTH];
                    for (at, sum) in sums.iter().enumerate() {
                        // SAFETY: a line is at least `V` registers long.
                        unsafe { $store(values.as_mut_ptr().add(at * LANES), *sum) };
                    }
                    tile.store(row, panel, lane, &values[..V * LANES]);
                }
            }
        }
    };
}

// 32 registers of 16 lanes.
#[cfg(target_arch = "x86_64")]
instruction_set!(avx512, "avx512f", 16, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps, 9, {
    1 => 4, 2 => 4, 3 => 4, 4 => 4, 5 => 4, 6 => 2, 7 => 2, 8 => 2, 9 => 2,
});

// 16 registers of 8 lanes.
#[cfg(target_arch = "x86_64")]
instruction_set!(avx2, "avx2,fma", 8, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps, 5, {
    1 => 8, 2 => 4, 3 => 2, 4 => 2, 5 => 2,
});

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers from -1 to 1 that look random.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn run(kernel: Kernel, most: usize, weights: &Weights, x: &[f32], rows: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * weights.outputs];
        let shared = Shared::new(&mut out);
        let panels = 0..weights.bias.len();
        for row in (0..rows).step_by(most) {
            let count = most.min(rows - row);
            let x = &x[row * weights.inputs..][..count * weights.inputs];
            kernel(&Tile { weights, x, panels: panels.clone(), row, out: &shared }, count);
        }
        out
    }

    proptest! {
        #[test]
        fn it_is_the_product_and_the_same_bits_in_any_company(
            rows in 1usize..40, inputs in 1usize..70, outputs in 1usize..200, seed: u64, biased: bool,
            threads in 1usize..4,
        ) {
            prop_assume!(supported());
            let (weight, x) = (numbers(inputs * outputs, seed), numbers(rows * inputs, seed ^ 1));
            let bias = numbers(if biased { outputs } else { 0 }, seed ^ 2);
            let weights = Weights::new(&weight, &bias, inputs, outputs);
            let mut out = vec![f32::NAN; rows * outputs];
            linear(&Threads::new(threads).unwrap(), &weights, &x, &mut out);
            for (row, out) in out.chunks(outputs).enumerate() {
                for (output, &got) in out.iter().enumerate() {
                    let terms = weight[output * inputs..][..inputs].iter().zip(&x[row * inputs..]);
                    let wanted: f64 = terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let wanted = wanted + bias.get(output).map_or(0.0, |bias| f64::from(*bias));
                    prop_assert!((f64::from(got) - wanted).abs() < 1e-4, "{got} {wanted}");
                }
                let mut alone = vec![f32::NAN; outputs];
                linear(&Threads::new(1).unwrap(), &weights, &x[row * inputs..][..inputs], &mut alone);
                prop_assert!(alone.iter().zip(out).all(|(a, b)| a.to_bits() == b.to_bits()), "row {row}");
            }
            #[cfg(target_arch = "x86_64")]
            if crate::math::has_fma() {
                let narrow = run(avx2::tile, avx2::ROWS, &weights, &x, rows);
                prop_assert!(narrow.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }

    #[test]
    fn nothing_is_a_product_too() {
        let threads = Threads::new(1).unwrap();
        linear(&threads, &Weights::new(&[], &[], 0, 0), &[], &mut []);
        linear(&threads, &Weights::new(&[], &[], 4, 0), &[], &mut []);
        let mut out = [1.0; 3];
        linear(&threads, &Weights::new(&[], &[], 0, 3), &[], &mut out);
        assert_eq!(out, [0.0; 3]);
        linear(&threads, &Weights::new(&[1.0; 4], &[], 2, 2), &[], &mut []);
    }

    #[test]
    #[should_panic(expected = "whole rows")]
    fn rows_that_are_not_whole_are_refused() {
        let weights = Weights::new(&[1.0; 6], &[], 3, 2);
        linear(&Threads::new(1).unwrap(), &weights, &[0.0; 5], &mut [0.0; 2]);
    }
}
