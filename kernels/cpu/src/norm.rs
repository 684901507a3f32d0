//! RMS normalization (Zhang and Sennrich, 2019), fused with the residual addition before it.

use crate::element::Element;
use crate::math::mul_add;
use crate::threads::{Shared, Threads};

/// Adds `branch` (unless it is empty) to `residual` in place, row by row, and writes the normalized
/// rows times `weight` to `out`. All are \[rows, width\]; `weight` is \[width\]. O(rows * width).
///
/// Rounds where a model in `T` does: after the addition, after the normalization and at the end.
///
/// # Panics
/// The slices do not have the same number of whole rows.
pub fn add_rms_norm<T: Element>(
    threads: &Threads,
    residual: &mut [T],
    branch: &[T],
    weight: &[T],
    epsilon: f32,
    out: &mut [T],
) {
    let width = weight.len();
    assert!(residual.len().is_multiple_of(width) && out.len() == residual.len(), "whole rows");
    assert!(branch.is_empty() || branch.len() == residual.len(), "as many rows in the branch");
    let rows = residual.len() / width;
    // A few rows a piece, so that claiming a piece costs little beside it.
    let rows_per_piece = (8192 / width).max(1);
    let (residual, out) = (Shared::new(residual), Shared::new(out));
    threads.share(rows.div_ceil(rows_per_piece), rows * width, |piece| {
        for row in piece * rows_per_piece..rows.min((piece + 1) * rows_per_piece) {
            // SAFETY: each row is in one piece.
            let (residual, out) =
                unsafe { (residual.part(row * width, width), out.part(row * width, width)) };
            let branch = if branch.is_empty() { branch } else { &branch[row * width..][..width] };
            normalize(residual, branch, weight, epsilon, out);
        }
    });
}

#[inline(always)]
fn normalize_body<T: Element, const FMA: bool>(
    residual: &mut [T],
    branch: &[T],
    weight: &[T],
    epsilon: f32,
    out: &mut [T],
) {
    for (sum, &term) in residual.iter_mut().zip(branch) {
        *sum = T::from_f32(sum.to_f32() + term.to_f32());
    }
    let mut squares = [0.0f32; 16];
    for group in residual.chunks(16) {
        for (lane, value) in squares.iter_mut().zip(group) {
            *lane = mul_add::<FMA>(value.to_f32(), value.to_f32(), *lane);
        }
    }
    let mean = squares.iter().sum::<f32>() / residual.len() as f32;
    let factor = 1.0 / (mean + epsilon).sqrt();
    for ((to, from), weight) in out.iter_mut().zip(residual.iter()).zip(weight) {
        *to = T::from_f32(T::from_f32(from.to_f32() * factor).to_f32() * weight.to_f32());
    }
}

crate::multiversion!(
    fn normalize<T: Element>(
        residual: &mut [T], branch: &[T], weight: &[T], epsilon: f32, out: &mut [T],
    ) = normalize_body
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_and_norm_of_each_row() {
        let threads = Threads::new(2).unwrap();
        let (rows, width) = (700, 24);
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 10.0;
        let mut residual: Vec<f32> = (0..rows * width).map(value).collect();
        let before = residual.clone();
        let branch: Vec<f32> = (0..rows * width).map(|i| value(i + 5)).collect();
        let weight: Vec<f32> = (0..width).map(|i| 1.0 + i as f32).collect();
        let mut out = vec![0.0; rows * width];
        add_rms_norm(&threads, &mut residual, &branch, &weight, 1e-5, &mut out);
        for row in 0..rows {
            let sum: Vec<f64> =
                (0..width).map(|i| f64::from(before[row * width + i] + branch[row * width + i])).collect();
            let mean = sum.iter().map(|x| x * x).sum::<f64>() / width as f64;
            for i in 0..width {
                let expected = sum[i] / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                assert!((f64::from(out[row * width + i]) - expected).abs() < 1e-4);
                assert_eq!(residual[row * width + i], sum[i] as f32);
            }
        }
        let unchanged = residual.clone();
        add_rms_norm(&threads, &mut residual, &[], &weight, 1e-5, &mut out);
        assert_eq!(residual, unchanged);
    }
}
