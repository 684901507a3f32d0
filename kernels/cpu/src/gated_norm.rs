//! RMS normalization with a gate, behind a recurrence: in groups, and gated behind the norm (Yang et al., "Gated Delta
//! Networks", 2024) or before it (Dao and Gu, "Transformers are SSMs", 2024).

use crate::activation::{sigmoid, silu};
use crate::columns::Columns;
use crate::element::Element;
use crate::math::mul_add;
use crate::norm::in_chains;
use crate::threads::{Shared, Threads};

/// The function of a gate, which what is gated is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// z * sigmoid(z).
    Silu,
    /// sigmoid(z).
    Sigmoid,
}

impl Gate {
    #[inline(always)]
    fn of<const FMA: bool>(self, z: f32) -> f32 {
        match self {
            Self::Silu => silu::<FMA>(z),
            // What is no number stays so.
            Self::Sigmoid if z.is_nan() => z,
            Self::Sigmoid => sigmoid::<FMA>(z),
        }
    }
}

/// How rows are normalized and gated.
#[derive(Debug, Clone, Copy)]
pub struct GatedNorm<'a, T> {
    /// The weight of every group, or of all groups of a row.
    pub weight: &'a [T],
    /// Numbers that are normalized together.
    pub group: usize,
    /// Added to the mean of the squares.
    pub epsilon: f32,
    /// The function of the gate.
    pub gate: Gate,
    /// Whether the gate comes before the norm.
    pub gate_first: bool,
}

impl<T: Element> GatedNorm<'_, T> {
    /// Normalizes and gates `x`, \[rows, width\], in place; `z` is \[rows, width\]. Rounds once, at the end.
    /// O(rows * width).
    ///
    /// # Panics
    /// `x` does not hold whole rows, a row not whole groups, or there is not a weight for each number.
    pub fn run(&self, threads: &Threads, x: &mut [T], z: Columns<'_, T>) {
        let width = z.width();
        assert!(x.len().is_multiple_of(width) && width.is_multiple_of(self.group), "whole rows and groups");
        assert!(self.weight.len() == self.group || self.weight.len() == width, "a weight for each number");
        let rows = x.len() / width;
        let rows_per_piece = (8192 / width).max(1);
        let x = Shared::new(x);
        threads.share(rows.div_ceil(rows_per_piece), rows * width * 4, |piece| {
            let mut gated = vec![0.0; self.group];
            for row in piece * rows_per_piece..rows.min((piece + 1) * rows_per_piece) {
                // SAFETY: each row is in one piece.
                let numbers = unsafe { x.part(row * width, width) };
                normalize(self, numbers, z.row(row), &mut gated);
            }
        });
    }
}

#[inline(always)]
fn normalize_body<T: Element, const FMA: bool>(
    of: &GatedNorm<'_, T>,
    x: &mut [T],
    z: &[T],
    gated: &mut [f32],
) {
    let groups = x.chunks_exact_mut(of.group).zip(z.chunks_exact(of.group));
    for ((x, z), weight) in groups.zip(of.weight.chunks_exact(of.group).cycle()) {
        for ((gated, x), z) in gated.iter_mut().zip(x.iter()).zip(z) {
            *gated = if of.gate_first { x.to_f32() * of.gate.of::<FMA>(z.to_f32()) } else { x.to_f32() };
        }
        let squares = in_chains(gated, |sum, value| mul_add::<FMA>(value, value, sum));
        let factor = 1.0 / (squares / of.group as f32 + of.epsilon).sqrt();
        for (((x, &gated), z), weight) in x.iter_mut().zip(gated.iter()).zip(z).zip(weight) {
            let normal = gated * factor * weight.to_f32();
            *x = T::from_f32(if of.gate_first { normal } else { normal * of.gate.of::<FMA>(z.to_f32()) });
        }
    }
}

crate::multiversion!(
    fn normalize<T: Element>(of: &GatedNorm<'_, T>, x: &mut [T], z: &[T], gated: &mut [f32]) = normalize_body
);

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(gate: Gate, z: f64) -> f64 {
        match gate {
            Gate::Silu => z / (1.0 + (-z).exp()),
            Gate::Sigmoid => 1.0 / (1.0 + (-z).exp()),
        }
    }

    #[test]
    fn groups_are_normalized_before_or_behind_their_gates() {
        let threads = Threads::new(2).unwrap();
        let (rows, group, groups, stride) = (301, 24, 3, 80);
        let width = group * groups;
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 10.0;
        let before: Vec<f32> = (0..rows * width).map(value).collect();
        let gates: Vec<f32> = (0..rows * stride).map(|i| value(i + 5)).collect();
        let weights: Vec<f32> = (0..width).map(|i| 1.0 + 0.1 * i as f32).collect();
        let z = Columns::new(&gates[3..], width, stride);
        for (gate, gate_first, weight) in [
            (Gate::Silu, true, &weights[..]),
            (Gate::Silu, false, &weights[..group]),
            (Gate::Sigmoid, false, &weights[..group]),
        ] {
            let mut x = before.clone();
            GatedNorm { weight, group, epsilon: 1e-5, gate, gate_first }.run(&threads, &mut x, z);
            for row in 0..rows {
                for first in (0..width).step_by(group) {
                    let number = |i: usize| {
                        let x = f64::from(before[row * width + first + i]);
                        x * if gate_first { exact(gate, f64::from(z.row(row)[first + i])) } else { 1.0 }
                    };
                    let mean = (0..group).map(|i| number(i).powi(2)).sum::<f64>() / group as f64;
                    for i in 0..group {
                        let weight = f64::from(weight[(first + i) % weight.len()]);
                        let gate =
                            if gate_first { 1.0 } else { exact(gate, f64::from(z.row(row)[first + i])) };
                        let expected = number(i) / (mean + 1e-5).sqrt() * weight * gate;
                        let got = f64::from(x[row * width + first + i]);
                        assert!((got - expected).abs() <= 1e-5 * expected.abs() + 1e-5, "{got}, {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for gate in [Gate::Silu, Gate::Sigmoid] {
            assert!(gate.of::<false>(f32::NAN).is_nan(), "{gate:?}");
        }
    }
}
