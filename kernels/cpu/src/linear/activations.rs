//! Rows quantized to 8 bits at the door of a layer with quantized weights: a scale for each group of inputs.
//!
//! Signed, symmetric, to the nearest: `value = round(x * 127 / largest)`, `scale = largest / 127`. A NaN counts as 0.
//! O(rows * inputs).

use crate::element::{Element, Rows};
use crate::math::mul_add;
use crate::threads::{Shared, Threads};

/// Quantized rows.
#[derive(Debug, Default)]
pub struct Activations {
    /// \[rows, groups * group\]: signed bytes, zeros after the last input.
    pub values: Vec<i8>,
    /// \[rows, groups\].
    pub scales: Vec<f32>,
    /// \[rows, groups\]: `zero` times the sum of the values; the sums of products begin with it.
    pub offsets: Vec<i32>,
    /// \[rows, groups\]: minus the sum of the values times their scale; multiplies the minimums.
    pub weights: Vec<f32>,
}

impl Activations {
    /// Quantizes `x`, rows of `inputs`, in groups of `group`.
    pub fn fill(&mut self, threads: &Threads, x: Rows<'_>, inputs: usize, group: usize, zero: i32) {
        match x {
            Rows::Floats(x) => self.quantize(threads, x, inputs, group, zero),
            Rows::Halves(x) => self.quantize(threads, x, inputs, group, zero),
        }
    }

    fn quantize<T: Element>(&mut self, threads: &Threads, x: &[T], inputs: usize, group: usize, zero: i32) {
        let (rows, groups) = (x.len() / inputs, inputs.div_ceil(group));
        self.values.resize(rows * groups * group, 0);
        self.scales.resize(rows * groups, 0.0);
        self.offsets.resize(rows * groups, 0);
        self.weights.resize(rows * groups, 0.0);
        let (values, scales) = (Shared::new(&mut self.values), Shared::new(&mut self.scales));
        let (offsets, weights) = (Shared::new(&mut self.offsets), Shared::new(&mut self.weights));
        threads.share(rows, x.len() * 2, |row| {
            // SAFETY: each row is one piece.
            let (values, scales, offsets, weights) = unsafe {
                (
                    values.part(row * groups * group, groups * group),
                    scales.part(row * groups, groups),
                    offsets.part(row * groups, groups),
                    weights.part(row * groups, groups),
                )
            };
            let x = x[row * inputs..][..inputs].chunks(group);
            for (at, (x, values)) in x.zip(values.chunks_exact_mut(group)).enumerate() {
                let (scale, sum) = quantize_group(x, values);
                scales[at] = scale;
                offsets[at] = zero * sum;
                weights[at] = -(sum as f32) * scale;
            }
        });
    }
}

#[inline(always)]
fn quantize_group_body<T: Element, const FMA: bool>(x: &[T], values: &mut [i8]) -> (f32, i32) {
    let mut peaks = [0.0f32; 16];
    for part in x.chunks(16) {
        for (peak, x) in peaks.iter_mut().zip(part) {
            let size = x.to_f32().abs();
            *peak = if size > *peak { size } else { *peak };
        }
    }
    let largest = peaks.iter().fold(0.0, |a: f32, &b| if b > a { b } else { a });
    let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // Adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut sum = 0i32;
    for (value, x) in values.iter_mut().zip(x) {
        // Not fused anywhere: the product is rounded first, on every machine.
        let shifted = mul_add::<false>(x.to_f32(), factor, ROUND);
        *value = shifted.to_bits() as i8;
        sum += i32::from(*value);
    }
    values[x.len()..].fill(0);
    (largest / 127.0, sum)
}

crate::multiversion!(
    fn quantize_group<T: Element>(x: &[T], values: &mut [i8]) -> (f32, i32) = quantize_group_body
);
