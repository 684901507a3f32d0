//! What a model does to every number of some rows, in place. O(numbers).

use crate::element::Element;
use crate::math::exp;
use crate::threads::{Shared, Threads};

/// Numbers that a thread takes at a time.
const PIECE: usize = 1 << 13;

/// x * factor, rounded to `T`.
pub fn scale<T: Element>(threads: &Threads, x: &mut [T], factor: f32) {
    in_pieces(threads, x, 1, |_, x| scale_piece(x, factor));
}

/// cap * tanh(x / cap), rounded to `T`: no number leaves -cap..cap (Gemma Team, "Gemma 2", 2024).
pub fn soft_cap<T: Element>(threads: &Threads, x: &mut [T], cap: f32) {
    in_pieces(threads, x, 8, |_, x| soft_cap_piece(x, cap));
}

/// Multiplies each row of `x` by some columns of the same row of `by`, in place: `x` is \[rows, width\], and `by`
/// \[rows, by_width\], of which the columns from `first` on count.
///
/// # Panics
/// The slices do not have the same number of whole rows, or `by` not as many columns.
pub fn multiply<T: Element>(x: &mut [T], width: usize, by: &[T], by_width: usize, first: usize) {
    assert!(first + width <= by_width && by.len() / by_width == x.len() / width, "whole rows and columns");
    for (x, by) in x.chunks_exact_mut(width).zip(by.chunks_exact(by_width)) {
        for (x, by) in x.iter_mut().zip(&by[first..]) {
            *x = T::from_f32(x.to_f32() * by.to_f32());
        }
    }
}

/// Multiplies by the sigmoids of gates, in place: `x` is \[rows, width\], and `gates` \[rows, gates_width\], each for
/// `width / gates_width` neighbours. O(numbers of `x`).
///
/// # Panics
/// The gates do not divide the numbers of a row.
pub fn gate<T: Element>(threads: &Threads, x: &mut [T], width: usize, gates: &[T], gates_width: usize) {
    assert!(gates_width > 0 && width.is_multiple_of(gates_width), "gates that divide a row");
    let each = width / gates_width;
    assert!(x.len() == each * gates.len(), "gates of each row");
    let x = Shared::new(x);
    let piece = PIECE.div_ceil(each);
    threads.share(gates.len().div_ceil(piece), gates.len() * (each + 8), |at| {
        let gates = &gates[at * piece..][..piece.min(gates.len() - at * piece)];
        // SAFETY: pieces do not overlap.
        let x = unsafe { x.part(at * piece * each, gates.len() * each) };
        for (x, gate) in x.chunks_exact_mut(each).zip(gates) {
            let factor = T::from_f32(1.0 / (1.0 + (-gate.to_f32()).exp())).to_f32();
            x.iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() * factor));
        }
    });
}

/// Adds `branch` to `residual` in place, and copies the sum to `out`.
///
/// # Panics
/// The slices differ in length, unless `branch` is empty: then nothing is added.
pub fn add<T: Element>(threads: &Threads, residual: &mut [T], branch: &[T], out: &mut [T]) {
    assert!(residual.len() == out.len() && (branch.is_empty() || branch.len() == out.len()), "one length");
    let shared = Shared::new(residual);
    in_pieces(threads, out, 1, |start, out| {
        // SAFETY: pieces do not overlap.
        let residual = unsafe { shared.part(start, out.len()) };
        let branch = if branch.is_empty() { branch } else { &branch[start..][..out.len()] };
        add_piece(residual, branch, out);
    });
}

fn in_pieces<T: Element>(
    threads: &Threads,
    x: &mut [T],
    operations: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let length = x.len();
    let x = Shared::new(x);
    threads.share(length.div_ceil(PIECE), length * operations, |piece| {
        let start = piece * PIECE;
        // SAFETY: pieces do not overlap.
        work(start, unsafe { x.part(start, PIECE.min(length - start)) });
    });
}

#[inline(always)]
fn scale_body<T: Element, const FMA: bool>(x: &mut [T], factor: f32) {
    for x in x {
        *x = T::from_f32(x.to_f32() * factor);
    }
}

#[inline(always)]
fn soft_cap_body<T: Element, const FMA: bool>(x: &mut [T], cap: f32) {
    for x in x {
        let value = x.to_f32();
        // tanh by e^-2|x|, which cannot overflow.
        let small = exp::<FMA>(-2.0 * (value / cap).abs());
        let size = cap * ((1.0 - small) / (1.0 + small));
        *x = T::from_f32(if value.is_nan() { value } else { size.copysign(value) });
    }
}

#[inline(always)]
fn add_body<T: Element, const FMA: bool>(residual: &mut [T], branch: &[T], out: &mut [T]) {
    for (sum, &term) in residual.iter_mut().zip(branch) {
        *sum = T::from_f32(sum.to_f32() + term.to_f32());
    }
    out.copy_from_slice(residual);
}

crate::multiversion!(fn scale_piece<T: Element>(x: &mut [T], factor: f32) = scale_body);
crate::multiversion!(fn soft_cap_piece<T: Element>(x: &mut [T], cap: f32) = soft_cap_body);
crate::multiversion!(fn add_piece<T: Element>(residual: &mut [T], branch: &[T], out: &mut [T]) = add_body);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_by_itself() {
        let threads = Threads::new(2).unwrap();
        let x: Vec<f32> = (0..20_000).map(|i| (i as f32 - 9_000.0) * 0.01).collect();
        let (mut scaled, mut capped) = (x.clone(), x.clone());
        scale(&threads, &mut scaled, 0.25);
        soft_cap(&threads, &mut capped, 30.0);
        for ((&x, scaled), capped) in x.iter().zip(scaled).zip(capped) {
            assert_eq!(scaled, x * 0.25);
            let exact = 30.0 * (f64::from(x) / 30.0).tanh();
            assert!((f64::from(capped) - exact).abs() < 1e-5, "{x}: {capped}, not {exact}");
        }
        let mut odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        soft_cap(&threads, &mut odd, 2.0);
        assert!(odd[0].is_nan() && odd[1..] == [2.0, -2.0]);
    }

    #[test]
    fn rows_by_columns_and_by_gates() {
        let threads = Threads::new(2).unwrap();
        let mut x = [1.0f32, 2.0, 3.0, 4.0];
        multiply(&mut x, 2, &[9.0, 2.0, 3.0, 9.0, 4.0, 5.0], 3, 1);
        assert_eq!(x, [2.0, 6.0, 12.0, 20.0]);
        gate(&threads, &mut x, 2, &[0.0, f32::INFINITY], 1);
        assert_eq!(x, [1.0, 3.0, 12.0, 20.0]);
        gate(&threads, &mut x, 2, &[0.0, f32::INFINITY, f32::NEG_INFINITY, 0.0], 2);
        assert_eq!(x, [0.5, 3.0, 0.0, 10.0]);
        let gates: Vec<f32> = (0..30_000).map(|i| if i % 3 == 0 { 0.0 } else { 100.0 }).collect();
        let mut many: Vec<f32> = (0..60_000).map(|i| i as f32).collect();
        gate(&threads, &mut many, 6, &gates, 3);
        assert!(
            many.iter().enumerate().all(|(i, &x)| x == i as f32 / if i / 2 % 3 == 0 { 2.0 } else { 1.0 })
        );
    }

    #[test]
    fn a_sum_and_its_copy() {
        let threads = Threads::new(2).unwrap();
        let branch: Vec<f32> = (0..20_000).map(|i| i as f32).collect();
        let (mut residual, mut out) = (vec![1.0; 20_000], vec![0.0; 20_000]);
        add(&threads, &mut residual, &branch, &mut out);
        assert!(out.iter().zip(&branch).all(|(sum, term)| *sum == term + 1.0));
        assert_eq!(residual, out);
        out.fill(0.0);
        add(&threads, &mut residual, &[], &mut out);
        assert_eq!(residual, out);
    }
}
