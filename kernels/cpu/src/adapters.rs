//! Low-rank adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021): what an adapter adds to the
//! outputs of a linear layer, for the rows that have it.
//!
//! ```text
//!  x [rows, inputs] ── shrink ──► [rows, ranks] ── scale, expand: for some outputs each ──► out += [rows, outputs]
//! ```
//!
//! One shrink serves all modules that share a fused layer, such as queries, keys and values; each module expands its own
//! ranks into its own outputs. Sums are float32, and a row's are the same bits whatever rows come with it.

use crate::element::Element;
use crate::linear::{Linear, linear};
use crate::threads::Threads;

/// An adapter's part of one linear layer.
pub struct Delta {
    /// \[ranks, inputs\].
    pub shrink: Linear,
    /// Of different outputs.
    pub expands: Vec<Expand>,
}

/// From some of the ranks to neighbouring outputs.
pub struct Expand {
    /// \[outputs, ranks of it\].
    pub linear: Linear,
    /// The first of its ranks.
    pub first_rank: usize,
    /// The first of its outputs in the layer.
    pub first_output: usize,
    /// Multiplies what it expands.
    pub scale: f32,
}

impl Delta {
    /// Whether it fits a layer with this number of inputs and of outputs.
    pub fn fits(&self, inputs: usize, outputs: usize) -> bool {
        let fits = |expand: &Expand| {
            expand.first_rank + expand.linear.inputs() <= self.shrink.outputs()
                && expand.first_output + expand.linear.outputs() <= outputs
        };
        self.shrink.inputs() == inputs && self.expands.iter().all(fits)
    }

    /// Bytes of its weights.
    pub fn nbytes(&self) -> usize {
        self.shrink.nbytes() + self.expands.iter().map(|expand| expand.linear.nbytes()).sum::<usize>()
    }
}

/// Adds to `rows` of `out` \[all rows, width\] what `delta` makes of the same rows of `x` \[all rows, inputs\].
///
/// O(rows * ranks * (inputs + outputs)).
///
/// # Panics
/// The delta does not fit the layer, or there is no such row.
pub fn add<T: Element>(
    threads: &Threads,
    delta: &Delta,
    rows: &[usize],
    x: &[T],
    out: &mut [T],
    width: usize,
) {
    let (inputs, ranks) = (delta.shrink.inputs(), delta.shrink.outputs());
    assert!(delta.fits(inputs, width), "an adapter's part of this layer");
    let given: Vec<T> = rows.iter().flat_map(|row| &x[row * inputs..][..inputs]).copied().collect();
    let mut shrunk = vec![0.0f32; rows.len() * ranks];
    linear(threads, &delta.shrink, &given, &mut shrunk);
    let (mut own, mut added) = (Vec::new(), Vec::new());
    for Expand { linear: expand, first_rank, first_output, scale } in &delta.expands {
        let (count, outputs) = (expand.inputs(), expand.outputs());
        own.clear();
        for row in shrunk.chunks_exact(ranks) {
            own.extend(row[*first_rank..][..count].iter().map(|number| number * scale));
        }
        added.clear();
        added.resize(rows.len() * outputs, 0.0f32);
        linear(threads, expand, &own, &mut added);
        for (row, added) in rows.iter().zip(added.chunks_exact(outputs)) {
            let out = &mut out[row * width + first_output..][..outputs];
            for (to, added) in out.iter_mut().zip(added) {
                *to = T::from_f32(to.to_f32() + added);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Rows;

    const INPUTS: usize = 21;
    const WIDTH: usize = 40;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 101) % 97) as f32 / 50.0 - 0.9).collect()
    }

    fn dense(seed: usize, outputs: usize, inputs: usize) -> Linear {
        Linear::dense(Rows::Floats(&numbers(outputs * inputs, seed)), &[], inputs, outputs)
    }

    /// Five ranks for the outputs 0..17, then three for 30..40.
    fn made() -> Delta {
        let of = |seed, first_output, outputs, first_rank, ranks| Expand {
            linear: dense(seed, outputs, ranks),
            first_rank,
            first_output,
            scale: 0.5 + seed as f32,
        };
        Delta { shrink: dense(3, 8, INPUTS), expands: vec![of(1, 0, 17, 0, 5), of(2, 30, 10, 5, 3)] }
    }

    #[test]
    fn chosen_rows_get_the_products_and_others_stay() {
        let (x, base) = (numbers(4 * INPUTS, 9), numbers(4 * WIDTH, 4));
        let mut out = base.clone();
        add(&Threads::new(1).unwrap(), &made(), &[1, 3], &x, &mut out, WIDTH);
        assert_eq!(out[..WIDTH], base[..WIDTH]);
        assert_eq!(out[2 * WIDTH..3 * WIDTH], base[2 * WIDTH..3 * WIDTH]);
        let shrink = numbers(8 * INPUTS, 3);
        let ranks: Vec<f32> = shrink
            .chunks_exact(INPUTS)
            .map(|weights| weights.iter().zip(&x[3 * INPUTS..]).map(|(weight, x)| weight * x).sum())
            .collect();
        let expand = numbers(10 * 3, 2);
        for output in 0..WIDTH {
            let added: f32 = match output {
                0..17 => (0..5).map(|rank| numbers(17 * 5, 1)[output * 5 + rank] * ranks[rank] * 1.5).sum(),
                30.. => (0..3).map(|rank| expand[(output - 30) * 3 + rank] * ranks[5 + rank] * 2.5).sum(),
                _ => 0.0,
            };
            let expected = base[3 * WIDTH + output] + added;
            assert!((out[3 * WIDTH + output] - expected).abs() < 1e-4, "{output}");
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company() {
        let (x, base) = (numbers(40 * INPUTS, 9), numbers(40 * WIDTH, 4));
        let rows: Vec<usize> = (0..40).collect();
        let mut together = base.clone();
        add(&Threads::new(2).unwrap(), &made(), &rows, &x, &mut together, WIDTH);
        let mut alone = base;
        for row in rows {
            add(&Threads::new(1).unwrap(), &made(), &[row], &x, &mut alone, WIDTH);
        }
        assert_eq!(together, alone);
    }
}
