//! Linear layers: products of a step's rows with packed weights.
//!
//! ```text
//!  weights [outputs, inputs]  ──packed once──►  panels of WIDTH outputs, a line of them for one input or a few
//!
//!  x    [rows, inputs]  ──door──►  as the kernels take it: widened, padded or quantized, if it must be
//!  out  [rows, outputs]            a piece of work is a panel, of few rows up to four, and a block of rows:
//!
//!           panel 0   panel 1  ...     piece ─► sums [rows, WIDTH] from the bias
//!  rows 0 ┌─────────┬─────────┐                 for each block of lines that fits the cache:
//!         │ piece 0 │ piece 2 │                     for each tile of rows: add (all sums in registers)
//!  rows 1 ├─────────┼─────────┤                 sums ─► out
//!         │ piece 1 │ piece 3 │
//! ```
//!
//! With few rows (one for each sequence, and one more for each draft token) what counts is that each weight is read
//! once for all of them, as fast as the memory gives it. With many rows it is a matrix product: a piece's weights stay
//! in the cache, and the memory brings the next ones while these are multiplied. Where registers are few, [`wide`] has
//! a way of its own for that.
//!
//! Each output is one chain of additions in a fixed order: a row's results are the same bits whatever rows come with
//! it, however many threads work. O(rows * inputs * outputs).

mod activations;
mod by_head;
mod dense;
mod dense_kernels;
mod door;
mod gather;
mod packed;
mod packed_kernels;
mod panels;
mod slab;
#[cfg(test)]
mod tests;
mod wide;
mod wide_kernels;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use crate::element::{Element, Rows};
use crate::isa::InstructionSet;
use crate::threads::{Shared, Threads};
use activations::Activations;
pub use by_head::linear_by_head;
pub use gather::gather;
use packed::Packed;
pub use packed::{MICROSCALED_GROUP, Microscaled, Quantized};
use panels::{Line, Lines, WIDTH};

/// Most rows in a piece of work.
const BLOCK_ROWS: usize = 96;

/// The weights of a linear layer, packed for [`linear`] and [`gather`](gather()). A clone shares them.
#[derive(Debug, Clone)]
pub struct Linear {
    /// Each is of outputs that are stored alike; the first outputs come first.
    sections: Vec<Section>,
    inputs: usize,
    outputs: usize,
}

/// Neighbouring outputs of a layer, with panels of their own.
#[derive(Debug, Clone)]
struct Section {
    weights: Arc<Weights>,
    /// A line for each panel.
    bias: Arc<Lines<f32>>,
    /// Its first output in the layer.
    first: usize,
    outputs: usize,
}

#[derive(Debug)]
enum Weights {
    /// A line for each input.
    Floats(Lines<f32>),
    /// bfloat16: a line for two inputs, the even one in the low half.
    Pairs(Lines<u32>),
    /// Integers of 4 or 8 bits, or floats of 4.
    Packed(Packed),
}

impl Linear {
    /// Packs `weight`, \[outputs, inputs\], and `bias`, \[outputs\] or nothing.
    ///
    /// # Panics
    /// The slices are not of this shape.
    pub fn dense(weight: Rows<'_>, bias: &[f32], inputs: usize, outputs: usize) -> Self {
        let panels = outputs.div_ceil(WIDTH);
        let (count, weights) = match weight {
            Rows::Floats(weight) => {
                let mut lines = Lines::zeros(panels * inputs);
                panels::pack::<1, _, _>(weight, inputs, &mut lines, inputs, |input| input[0]);
                (weight.len(), Weights::Floats(lines))
            }
            Rows::Halves(weight) => {
                let per_panel = inputs.div_ceil(2);
                let mut lines = Lines::zeros(panels * per_panel);
                let bits = |input: Option<&bf16>| input.map_or(0, |input| u32::from(input.to_bits()));
                panels::pack::<2, _, _>(weight, inputs, &mut lines, per_panel, |pair| {
                    bits(pair.first()) | bits(pair.get(1)) << 16
                });
                (weight.len(), Weights::Pairs(lines))
            }
        };
        assert_eq!(count, inputs * outputs, "a weight for every input and output");
        Self::of(weights, bias, inputs, outputs)
    }

    /// Packs quantized weights, and `bias`, \[outputs\] or nothing.
    ///
    /// # Panics
    /// An array is not of its shape, or bits or group are not those of [`Quantized`].
    pub fn packed(from: &Quantized<'_>, bias: &[f32], inputs: usize, outputs: usize) -> Self {
        Self::of(Weights::Packed(Packed::new(from, inputs, outputs)), bias, inputs, outputs)
    }

    /// Packs weights in MXFP4, and `bias`, \[outputs\] or nothing.
    ///
    /// # Panics
    /// An array is not of its shape.
    pub fn microscaled(from: &Microscaled<'_>, bias: &[f32], inputs: usize, outputs: usize) -> Self {
        Self::of(Weights::Packed(Packed::microscaled(from, inputs, outputs)), bias, inputs, outputs)
    }

    fn of(weights: Weights, bias: &[f32], inputs: usize, outputs: usize) -> Self {
        let section =
            Section { weights: weights.into(), bias: padded(bias, outputs).into(), first: 0, outputs };
        Self { sections: vec![section], inputs, outputs }
    }

    /// One layer of the outputs of several, in their order, each stored as it was.
    ///
    /// # Panics
    /// There is none, or they differ in their inputs.
    pub fn stacked(layers: impl IntoIterator<Item = Self>) -> Self {
        layers
            .into_iter()
            .reduce(|mut above, below| {
                assert_eq!(above.inputs, below.inputs, "as many inputs");
                above.sections.extend(
                    below
                        .sections
                        .into_iter()
                        .map(|section| Section { first: section.first + above.outputs, ..section }),
                );
                above.outputs += below.outputs;
                above
            })
            .expect("at least one layer")
    }

    /// Bytes of weights, scales and biases. O(sections).
    pub fn nbytes(&self) -> usize {
        let of = |section: &Section| {
            section.bias.nbytes()
                + match &*section.weights {
                    Weights::Floats(lines) => lines.nbytes(),
                    Weights::Pairs(lines) => lines.nbytes(),
                    Weights::Packed(packed) => packed.nbytes(),
                }
        };
        self.sections.iter().map(of).sum()
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

/// `bias` in a line for each panel; zeros where there is none.
fn padded(bias: &[f32], outputs: usize) -> Lines<f32> {
    assert!(bias.is_empty() || bias.len() == outputs, "a bias for every output");
    let mut lines = Lines::zeros(outputs.div_ceil(WIDTH));
    for (output, &bias) in bias.iter().enumerate() {
        lines[output / WIDTH].0[output % WIDTH] = bias;
    }
    lines
}

/// x W^T + b: `x` is \[rows, inputs\], `out` \[rows, outputs\]. All sums are float32.
///
/// # Panics
/// The slices do not have the same number of whole rows.
pub fn linear<T: Element, U: Element>(threads: &Threads, linear: &Linear, x: &[T], out: &mut [U]) {
    linear_by(InstructionSet::best(), threads, linear, T::rows(x), out);
}

/// The same with a given instruction set.
fn linear_by<U: Element>(
    set: InstructionSet,
    threads: &Threads,
    linear: &Linear,
    x: Rows<'_>,
    out: &mut [U],
) {
    let (inputs, outputs) = (linear.inputs, linear.outputs);
    if outputs == 0 || out.is_empty() {
        return;
    }
    let rows = out.len() / outputs;
    assert!(out.len() == rows * outputs && x.len() == rows * inputs, "whole rows, as many in as out");
    let numbers = &Shared::new(out);
    let mut out = Out { numbers, first: 0, rows, width: outputs, inputs };
    for section in &linear.sections {
        section.add(set, threads, x, &mut out);
    }
}

/// Where a layer's results go.
struct Out<'a, U> {
    /// \[rows, width\].
    numbers: &'a Shared<'a, U>,
    /// The first row, ...
    first: usize,
    /// ... and how many there are.
    rows: usize,
    width: usize,
    inputs: usize,
}

impl Section {
    /// Writes this section's outputs of all rows.
    fn add<U: Element>(&self, set: InstructionSet, threads: &Threads, x: Rows<'_>, out: &mut Out<'_, U>) {
        let (inputs, wide) = (out.inputs, out.rows >= wide_kernels::LEAST_ROWS);
        match (&*self.weights, x) {
            (Weights::Floats(lines), x) => match wide_kernels::floats(set).filter(|_| wide) {
                Some(kernel) => self.add_wide(threads, lines, x, kernel, out),
                None => door::floats(threads, x, inputs, inputs, |x| {
                    self.add_dense(threads, lines, x, inputs, dense_kernels::floats(set), out);
                }),
            },
            (Weights::Packed(packed), x) => ACTIVATIONS.with_borrow_mut(|activations| {
                let kernel = packed_kernels::kernel(set, packed);
                activations.fill(set, threads, x, inputs, packed.group, kernel.zero - packed.zero);
                let x = &*activations;
                let step = panels_between(threads, out.rows);
                self.pieces(threads, out, 1, |panels, rows, sums| {
                    let panel = panels.start;
                    // One tile reads its weights in order, as fast as the memory gives them.
                    let several = rows.len() > kernel.most_rows;
                    for tile in tiles(rows.len(), kernel.most_rows) {
                        let row = rows.start + tile.start;
                        let due = |row| (panel + step) * packed.groups + packed.groups * row / rows.len();
                        let ahead = if several { due(tile.start)..due(tile.end) } else { 0..0 };
                        (kernel.add)(packed_kernels::Tile { packed, panel, x, row, ahead }, &mut sums[tile]);
                    }
                });
            }),
            (Weights::Pairs(lines), x) => {
                let odd_first = matches!(x, Rows::Halves(_));
                if let Some(kernel) = wide_kernels::pairs(set, odd_first).filter(|_| wide) {
                    return self.add_wide(threads, lines, x, kernel, out);
                }
                let stride = inputs.next_multiple_of(2);
                match (x, dense_kernels::dot_pairs(set)) {
                    (Rows::Halves(halves), Some(kernel)) => door::halves(halves, inputs, stride, |x| {
                        self.add_dense(threads, lines, x, stride, kernel, out);
                    }),
                    _ => door::floats(threads, x, inputs, stride, |x| {
                        self.add_dense(threads, lines, x, stride, dense_kernels::pairs(set, odd_first), out);
                    }),
                }
            }
        }
    }

    /// Shares the work in pieces of `together` panels and some rows: `add` adds the products to their sums,
    /// \[panels, rows\], which begin with the bias.
    fn pieces<U: Element>(
        &self,
        threads: &Threads,
        out: &mut Out<'_, U>,
        together: usize,
        add: impl Fn(Range<usize>, Range<usize>, &mut [Line<f32>]) + Sync,
    ) {
        let Out { numbers, first: first_row, rows, width, inputs } = *out;
        let panels = self.bias.len();
        let blocks = row_blocks(rows);
        threads.share(panels.div_ceil(together) * blocks, rows * inputs * self.outputs, |piece| {
            let (first, block) = (piece / blocks * together, piece % blocks);
            let panels = first..panels.min(first + together);
            let rows = row_block(rows, block);
            SUMS.with_borrow_mut(|sums| {
                sums.clear();
                for bias in &self.bias[panels.clone()] {
                    sums.resize(sums.len() + rows.len(), *bias);
                }
                add(panels.clone(), rows.clone(), sums);
                for (panel, sums) in panels.zip(sums.chunks_exact(rows.len())) {
                    let first = panel * WIDTH;
                    let count = WIDTH.min(self.outputs - first);
                    for (row, sums) in rows.clone().zip(sums) {
                        // SAFETY: pieces are of different rows or panels.
                        let out =
                            unsafe { numbers.part((first_row + row) * width + self.first + first, count) };
                        round(&sums.0[..count], out);
                    }
                }
            });
        });
    }
}

/// How many blocks of rows there are, ...
fn row_blocks(rows: usize) -> usize {
    rows.div_ceil(BLOCK_ROWS)
}

/// ... and the rows of one of them.
fn row_block(rows: usize, block: usize) -> Range<usize> {
    let blocks = row_blocks(rows);
    rows * block / blocks..rows * (block + 1) / blocks
}

/// From one panel of a thread to its next: the piece that it takes next is most likely one for each thread further on.
fn panels_between(threads: &Threads, rows: usize) -> usize {
    threads.count().div_ceil(row_blocks(rows).max(1))
}

/// `rows` rows in as few tiles as hold them, about equal.
fn tiles(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let mut row = 0;
    std::iter::from_fn(move || {
        let left = rows - row;
        let count = left.checked_div(left.div_ceil(most))?;
        row += count;
        Some(row - count..row)
    })
}

thread_local! {
    /// The sums of the piece that this thread works on.
    static SUMS: RefCell<Vec<Line<f32>>> = const { RefCell::new(Vec::new()) };
    /// The rows of the layer that this thread computes.
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
}

#[inline(always)]
fn round_body<U: Element, const FMA: bool>(sums: &[f32], out: &mut [U]) {
    for (to, &sum) in out.iter_mut().zip(sums) {
        *to = U::from_f32(sum);
    }
}

crate::multiversion!(fn round<U: Element>(sums: &[f32], out: &mut [U]) = round_body);
