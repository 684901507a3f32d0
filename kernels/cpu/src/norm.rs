//! RMS normalization (Zhang and Sennrich, 2019) and layer normalization (Ba, Kiros and Hinton, 2016), fused with
//! the residual addition before them; and RMS normalization of queries and keys, in place (Henry et al., "Query-Key
//! Normalization for Transformers", 2020, with RMS norms).

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
    by_row(threads, residual, branch, weight.len(), out, |residual, branch, out| {
        normalize(residual, branch, weight, epsilon, out);
    });
}

/// As [`add_rms_norm`], with layer normalization: the mean is subtracted, and `bias`, \[width\] or nothing, is added.
///
/// Rounds after the addition and at the end.
///
/// # Panics
/// The slices do not have the same number of whole rows.
pub fn add_layer_norm<T: Element>(
    threads: &Threads,
    residual: &mut [T],
    branch: &[T],
    (weight, bias): (&[T], &[T]),
    epsilon: f32,
    out: &mut [T],
) {
    assert!(bias.is_empty() || bias.len() == weight.len(), "a bias for every weight");
    by_row(threads, residual, branch, weight.len(), out, |residual, branch, out| {
        normalize_layer(residual, branch, weight, bias, epsilon, out);
    });
}

fn by_row<T: Element>(
    threads: &Threads,
    residual: &mut [T],
    branch: &[T],
    width: usize,
    out: &mut [T],
    work: impl Fn(&mut [T], &[T], &mut [T]) + Sync,
) {
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
            work(residual, branch, out);
        }
    });
}

/// How \[rows, query + 2 * kv\] numbers of queries, keys and values are normalized: in pieces as long as a weight,
/// which are single heads, or all of a row's queries or keys.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms<'a, T> {
    /// The weight of every piece of queries.
    pub query_weight: &'a [T],
    /// The weight of every piece of keys.
    pub key_weight: &'a [T],
    /// The weight of every piece of values; empty: values stay.
    pub value_weight: &'a [T],
    /// Width of a row's queries.
    pub query: usize,
    /// Width of a row's keys, and of its values.
    pub kv: usize,
    /// Added to the mean of the squares.
    pub epsilon: f32,
}

/// Normalizes queries, keys and perhaps values of every row of `qkv` in place. O(rows * width).
///
/// Rounds where [`add_rms_norm`] does.
///
/// # Panics
/// `qkv` does not hold whole rows, or a row not whole pieces.
pub fn head_rms_norm<T: Element>(threads: &Threads, qkv: &mut [T], norms: HeadNorms<'_, T>) {
    let HeadNorms { query_weight, key_weight, value_weight, query, kv, epsilon } = norms;
    let width = query + 2 * kv;
    assert!(qkv.len().is_multiple_of(width), "whole rows");
    assert!(query.is_multiple_of(query_weight.len()) && kv.is_multiple_of(key_weight.len()), "whole pieces");
    assert!(value_weight.is_empty() || kv.is_multiple_of(value_weight.len()), "whole pieces");
    let rows = qkv.len() / width;
    let rows_per_piece = (8192 / width).max(1);
    let qkv = Shared::new(qkv);
    threads.share(rows.div_ceil(rows_per_piece), rows * width, |piece| {
        for row in piece * rows_per_piece..rows.min((piece + 1) * rows_per_piece) {
            // SAFETY: each row is in one piece, and its queries and keys are apart.
            let (queries, keys) =
                unsafe { (qkv.part(row * width, query), qkv.part(row * width + query, kv)) };
            normalize_heads(queries, query_weight, epsilon);
            normalize_heads(keys, key_weight, epsilon);
            if !value_weight.is_empty() {
                // SAFETY: as above, and its values are behind both.
                let values = unsafe { qkv.part(row * width + query + kv, kv) };
                normalize_heads(values, value_weight, epsilon);
            }
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
    let factor = inverse_root_mean_square::<T, FMA>(residual, epsilon);
    for ((to, from), weight) in out.iter_mut().zip(residual.iter()).zip(weight) {
        *to = scaled(*from, factor, *weight);
    }
}

#[inline(always)]
fn normalize_layer_body<T: Element, const FMA: bool>(
    residual: &mut [T],
    branch: &[T],
    weight: &[T],
    bias: &[T],
    epsilon: f32,
    out: &mut [T],
) {
    for (sum, &term) in residual.iter_mut().zip(branch) {
        *sum = T::from_f32(sum.to_f32() + term.to_f32());
    }
    let mean = sum_of(residual, |value| value) / residual.len() as f32;
    let variance = sum_of(residual, |value| (value - mean) * (value - mean)) / residual.len() as f32;
    let factor = 1.0 / (variance + epsilon).sqrt();
    for (index, ((to, from), weight)) in out.iter_mut().zip(residual.iter()).zip(weight).enumerate() {
        let bias = bias.get(index).map_or(0.0, |bias| bias.to_f32());
        *to = T::from_f32((from.to_f32() - mean) * factor * weight.to_f32() + bias);
    }
}

/// What `add` makes of all values from 0 on, in 16 chains that are summed at the end.
#[inline(always)]
pub(crate) fn in_chains<T: Element>(values: &[T], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut chains = [0.0f32; 16];
    // Whole groups apart from the rest: of them the compiler makes registers.
    let (groups, rest) = values.as_chunks::<16>();
    for group in groups {
        for (chain, value) in chains.iter_mut().zip(group) {
            *chain = add(*chain, value.to_f32());
        }
    }
    for (chain, value) in chains.iter_mut().zip(rest) {
        *chain = add(*chain, value.to_f32());
    }
    chains.iter().sum()
}

/// The sum of `of` each value, in 16 chains.
#[inline(always)]
fn sum_of<T: Element>(values: &[T], of: impl Fn(f32) -> f32) -> f32 {
    in_chains(values, |sum, value| sum + of(value))
}

#[inline(always)]
fn normalize_heads_body<T: Element, const FMA: bool>(heads: &mut [T], weight: &[T], epsilon: f32) {
    for head in heads.chunks_exact_mut(weight.len()) {
        let factor = inverse_root_mean_square::<T, FMA>(head, epsilon);
        for (value, weight) in head.iter_mut().zip(weight) {
            *value = scaled(*value, factor, *weight);
        }
    }
}

#[inline(always)]
fn inverse_root_mean_square<T: Element, const FMA: bool>(values: &[T], epsilon: f32) -> f32 {
    let squares = in_chains(values, |sum, value| mul_add::<FMA>(value, value, sum));
    let mean = squares / values.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

#[inline(always)]
fn scaled<T: Element>(value: T, factor: f32, weight: T) -> T {
    T::from_f32(T::from_f32(value.to_f32() * factor).to_f32() * weight.to_f32())
}

crate::multiversion!(
    fn normalize<T: Element>(
        residual: &mut [T], branch: &[T], weight: &[T], epsilon: f32, out: &mut [T],
    ) = normalize_body
);

crate::multiversion!(
    fn normalize_layer<T: Element>(
        residual: &mut [T], branch: &[T], weight: &[T], bias: &[T], epsilon: f32, out: &mut [T],
    ) = normalize_layer_body
);

crate::multiversion!(
    pub(crate) fn normalize_heads<T: Element>(heads: &mut [T], weight: &[T], epsilon: f32) = normalize_heads_body
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

    #[test]
    fn heads_are_rows_of_their_own() {
        let threads = Threads::new(2).unwrap();
        let (rows, dim, query, kv) = (301, 24, 4, 2);
        let width = (query + 2 * kv) * dim;
        let value = |i: usize| ((i * 53 % 97) as f32 - 40.0) / 7.0;
        let before: Vec<f32> = (0..rows * width).map(value).collect();
        let query_weight: Vec<f32> = (0..dim).map(|i| 1.0 + i as f32).collect();
        let key_weight: Vec<f32> = (0..dim).map(|i| -0.5 * i as f32).collect();
        let mut qkv = before.clone();
        let norms = HeadNorms {
            query_weight: &query_weight,
            key_weight: &key_weight,
            value_weight: &[],
            query: query * dim,
            kv: kv * dim,
            epsilon: 1e-6,
        };
        head_rms_norm(&threads, &mut qkv, norms);
        for (index, head) in before.chunks(dim).enumerate() {
            let weight = match index % (query + 2 * kv) {
                place if place < query => &query_weight,
                place if place < query + kv => &key_weight,
                _ => {
                    assert_eq!(&qkv[index * dim..][..dim], head);
                    continue;
                }
            };
            let mut expected = vec![0.0; dim];
            add_rms_norm(&threads, &mut head.to_vec(), &[], weight, 1e-6, &mut expected);
            assert_eq!(qkv[index * dim..][..dim], expected);
        }
    }

    #[test]
    fn all_queries_of_a_row_are_a_piece() {
        let threads = Threads::new(2).unwrap();
        let (query, kv) = (48, 24);
        let before: Vec<f32> =
            (0..3 * (query + 2 * kv)).map(|i| ((i * 53 % 97) as f32 - 40.0) / 7.0).collect();
        let weight: Vec<f32> = (0..query).map(|i| 1.0 + i as f32).collect();
        let mut qkv = before.clone();
        let (key_weight, value_weight) = (&weight[..kv], &[][..]);
        let norms = HeadNorms { query_weight: &weight, key_weight, value_weight, query, kv, epsilon: 1e-6 };
        head_rms_norm(&threads, &mut qkv, norms);
        for (got, row) in qkv.chunks(query + 2 * kv).zip(before.chunks(query + 2 * kv)) {
            for (start, width) in [(0, query), (query, kv)] {
                let mut expected = vec![0.0; width];
                let mut part = row[start..][..width].to_vec();
                add_rms_norm(&threads, &mut part, &[], &weight[..width], 1e-6, &mut expected);
                assert_eq!(got[start..][..width], expected);
            }
            assert_eq!(got[query + kv..], row[query + kv..]);
        }
    }

    #[test]
    fn a_layer_norm_subtracts_the_mean() {
        let threads = Threads::new(2).unwrap();
        let (rows, width) = (700, 24);
        let mut residual: Vec<f32> =
            (0..rows * width).map(|i| ((i * 37 % 101) as f32 - 20.0) / 10.0).collect();
        let before = residual.clone();
        let weight: Vec<f32> = (0..width).map(|i| 1.0 + i as f32).collect();
        let bias: Vec<f32> = (0..width).map(|i| 0.5 * i as f32).collect();
        let mut out = vec![0.0; rows * width];
        add_layer_norm(&threads, &mut residual, &before, (&weight, &bias), 1e-5, &mut out);
        for (row, got) in before.chunks(width).zip(out.chunks(width)) {
            let row: Vec<f64> = row.iter().map(|x| 2.0 * f64::from(*x)).collect();
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let normal = (row[i] - mean) / (variance + 1e-5).sqrt();
                let expected = normal * f64::from(weight[i]) + f64::from(bias[i]);
                assert!((f64::from(got[i]) - expected).abs() < 1e-4);
            }
        }
    }
}
