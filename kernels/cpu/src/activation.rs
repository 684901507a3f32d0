//! The gated activation of Llama's feed-forward layer: silu(gate) * up (Shazeer, 2020).

use crate::element::Element;
use crate::math::exp;
use crate::threads::{Shared, Threads};

/// `gate_up` is \[rows, 2 * width\], gates first; `out` is \[rows, width\]. O(rows * width).
///
/// Rounds as a model in `T` does: after silu and at the end.
///
/// # Panics
/// The slices do not have the same number of whole rows.
pub fn silu_mul<T: Element>(threads: &Threads, gate_up: &[T], width: usize, out: &mut [T]) {
    assert!(gate_up.len() == 2 * out.len() && out.len().is_multiple_of(width), "whole rows");
    let rows = out.len() / width;
    let operations = out.len() * 4;
    let out = Shared::new(out);
    threads.share(rows, operations, |row| {
        // SAFETY: each row is one piece.
        let out = unsafe { out.part(row * width, width) };
        let (gate, up) = gate_up[2 * row * width..][..2 * width].split_at(width);
        gated(gate, up, out);
    });
}

#[inline(always)]
fn gated_body<T: Element, const FMA: bool>(gate: &[T], up: &[T], out: &mut [T]) {
    for ((to, gate), up) in out.iter_mut().zip(gate).zip(up) {
        let gate = gate.to_f32();
        // 1 / (1 + e^-x), by e^-|x|, which cannot overflow.
        let small = exp::<FMA>(-gate.abs());
        let sigmoid = if gate >= 0.0 { 1.0 } else { small } / (1.0 + small);
        *to = T::from_f32(T::from_f32(gate * sigmoid).to_f32() * up.to_f32());
    }
}

crate::multiversion!(fn gated<T: Element>(gate: &[T], up: &[T], out: &mut [T]) = gated_body);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_times_up() {
        let threads = Threads::new(2).unwrap();
        let gate_up: Vec<f32> = (0..4 * 34).map(|i| (i as f32 - 68.0) * 1.7).collect();
        let mut out = vec![0.0; 2 * 34];
        silu_mul(&threads, &gate_up, 34, &mut out);
        for row in 0..2 {
            for i in 0..34 {
                let gate = f64::from(gate_up[row * 68 + i]);
                let expected = gate / (1.0 + (-gate).exp()) * f64::from(gate_up[row * 68 + 34 + i]);
                let got = f64::from(out[row * 34 + i]);
                assert!((got - expected).abs() <= 1e-6 * expected.abs() + 1e-30, "{got} {expected}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        let mut out = [0.0f32; 1];
        silu_mul(&Threads::new(1).unwrap(), &[f32::NAN, 1.0], 1, &mut out);
        assert!(out[0].is_nan());
    }
}
