//! Products held to float64, and to their own bits in every instruction set and any company.

mod dense;
mod kinds;
mod microscaled;
mod packed;

use half::bf16;
use proptest::prelude::*;

use super::*;

/// Numbers from -1 to 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn narrow(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&number| Element::from_f32(number)).collect()
}

fn widened(numbers: &[bf16]) -> Vec<f32> {
    numbers.iter().map(|&number| Element::to_f32(number)).collect()
}

fn run(set: InstructionSet, threads: usize, layer: &Linear, x: Rows<'_>) -> Vec<f32> {
    let rows = x.len() / layer.inputs;
    let mut out = vec![f32::NAN; rows * layer.outputs];
    linear_by(set, &Threads::new(threads).unwrap(), layer, x, &mut out);
    out
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The rows `row..row + 1` of `x`.
fn one_row(x: Rows<'_>, row: usize, inputs: usize) -> Rows<'_> {
    match x {
        Rows::Floats(x) => Rows::Floats(&x[row * inputs..][..inputs]),
        Rows::Halves(x) => Rows::Halves(&x[row * inputs..][..inputs]),
    }
}

/// Whether this set's float32 additions are fused, as those of all others are.
fn fuses(set: InstructionSet) -> bool {
    set != InstructionSet::Portable || cfg!(any(target_feature = "fma", target_arch = "aarch64"))
}
