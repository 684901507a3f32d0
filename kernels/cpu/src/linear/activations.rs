//! Rows quantized to 8 bits at the door of a layer with quantized weights: a scale for each group of inputs.
//!
//! Signed, symmetric, to the nearest: `value = round(x * 127 / largest)`, `scale = largest / 127`. A NaN counts as 0.
//! O(rows * inputs).

use half::bf16;

use crate::element::{Element, Rows};
use crate::isa::InstructionSet;
use crate::math::mul_add;
use crate::threads::{Shared, Threads};

/// Quantized rows.
#[derive(Debug, Default, PartialEq)]
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
    /// Quantizes `x`, rows of `inputs`, in groups of `group`: the same bits by every instruction set.
    pub fn fill(
        &mut self,
        set: InstructionSet,
        threads: &Threads,
        x: Rows<'_>,
        inputs: usize,
        group: usize,
        zero: i32,
    ) {
        match x {
            Rows::Floats(x) => self.quantize(by::<f32>(set, group), threads, x, inputs, group, zero),
            Rows::Halves(x) => self.quantize(by::<bf16>(set, group), threads, x, inputs, group, zero),
        }
    }

    fn quantize<T: Element>(
        &mut self,
        by: QuantizeGroup<T>,
        threads: &Threads,
        x: &[T],
        inputs: usize,
        group: usize,
        zero: i32,
    ) {
        let (rows, groups) = (x.len() / inputs, inputs.div_ceil(group));
        self.values.resize(rows * groups * group, 0);
        self.scales.resize(rows * groups, 0.0);
        self.offsets.resize(rows * groups, 0);
        self.weights.resize(rows * groups, 0.0);
        let (values, scales) = (Shared::new(&mut self.values), Shared::new(&mut self.scales));
        let (offsets, weights) = (Shared::new(&mut self.offsets), Shared::new(&mut self.weights));
        // Neighbouring rows share lines of the processor's caches: a piece has many.
        let per_piece = (PIECE / inputs.max(1)).max(1);
        threads.share(rows.div_ceil(per_piece), x.len() / 2, |piece| {
            for row in piece * per_piece..rows.min((piece + 1) * per_piece) {
                // SAFETY: each row is in one piece.
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
                    let (scale, sum) =
                        if x.len() == group { by(x, values) } else { quantize_group(x, values) };
                    scales[at] = scale;
                    offsets[at] = zero * sum;
                    weights[at] = -(sum as f32) * scale;
                }
            }
        });
    }
}

/// Numbers in a piece of work, about.
const PIECE: usize = 1 << 14;

/// Quantizes a group; returns its scale and the sum of its values.
type QuantizeGroup<T> = fn(&[T], &mut [i8]) -> (f32, i32);

/// The function for whole groups of this size.
fn by<T: Element>(set: InstructionSet, group: usize) -> QuantizeGroup<T> {
    match set {
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx512 && group.is_multiple_of(avx512::LANES) => avx512::quantize_group,
        #[cfg(target_arch = "x86_64")]
        set if set >= InstructionSet::Avx2 && group.is_multiple_of(avx2::LANES) => avx2::quantize_group,
        _ => quantize_group,
    }
}

/// The loops of one instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! quantize {
    ($module:ident, $feature:meta) => {
        mod $module {
            use super::Element;
            use crate::registers::$module::*;

            pub use crate::registers::$module::LANES;

            pub fn quantize_group<T: Element>(x: &[T], values: &mut [i8]) -> (f32, i32) {
                assert!(x.len().is_multiple_of(LANES) && values.len() == x.len(), "whole registers");
                // SAFETY: chosen where the processor has these instructions; sizes were checked.
                unsafe { quantize(x, values) }
            }

            #[$feature]
            fn quantize<T: Element>(x: &[T], values: &mut [i8]) -> (f32, i32) {
                let (from, to) = (x.as_ptr(), values.as_mut_ptr());
                // SAFETY: whole registers of both. Indices make loops that even builds without LTO keep in registers.
                unsafe {
                    let mut peaks = zero();
                    for at in (0..x.len()).step_by(LANES) {
                        // A NaN is left out.
                        peaks = larger(size(load_stored(from.add(at))), peaks);
                    }
                    let largest = largest(peaks);
                    let factor = splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
                    let mut sums = splat_integer(0);
                    for at in (0..x.len()).step_by(LANES) {
                        let rounded = to_bytes(times(load_stored(from.add(at)), factor));
                        sums = plus_integers(sums, rounded);
                        store_bytes(to.add(at), rounded);
                    }
                    (largest / 127.0, total(sums))
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
quantize!(avx2, target_feature(enable = "avx2,fma"));
#[cfg(target_arch = "x86_64")]
quantize!(avx512, target_feature(enable = "avx512f,avx512bw,avx512vl"));

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_same_bits(
            rows in 1usize..40, groups in 1usize..4, cut in 0usize..16, group in prop_oneof![Just(8), Just(32), Just(48)],
            seed in prop::collection::vec(prop_oneof![9 => -9.0f32..9.0, 1 => Just(f32::NAN), 1 => Just(0.0)], 97),
        ) {
            let inputs = groups * group - cut.min(group - 1);
            let x: Vec<f32> = seed.iter().copied().cycle().take(rows * inputs).collect();
            let halves: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            let threads = Threads::new(2).unwrap();
            for x in [Rows::Floats(&x), Rows::Halves(&halves)] {
                let mut expected = Activations::default();
                expected.fill(InstructionSet::Portable, &threads, x, inputs, group, 7);
                for set in InstructionSet::all_here() {
                    let mut found = Activations::default();
                    found.fill(set, &threads, x, inputs, group, 7);
                    prop_assert!(found == expected, "{:?}", set);
                }
            }
        }
    }
}
