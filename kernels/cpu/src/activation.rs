//! The activations of feed-forward layers: of a gate that multiplies (Shazeer, "GLU Variants Improve Transformer",
//! 2020), or alone.

use crate::element::Element;
use crate::math::{exp, mul_add};
use crate::threads::{Shared, Threads};

/// A function of a feed-forward layer's inner numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// GELU (Hendrycks and Gimpel, 2016): x times the share of a normal distribution that is below x.
    Gelu,
    /// The same by the tangent.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// max(x, 0)^2.
    SquaredRelu,
    /// gpt-oss': gates are at most `limit` and ups within it; gate * sigmoid(1.702 gate) * (up + 1).
    ClampedSwiglu {
        /// The largest number.
        limit: f32,
    },
    /// xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration", 2024): positive x^2 + slope x above
    /// 0, negative (e^x - 1 - x) + slope x below.
    Xielu {
        /// Of the square.
        positive: f32,
        /// Of the exponential.
        negative: f32,
        /// At 0.
        slope: f32,
    },
}

/// What multiplies the gate in the sigmoid of [`Activation::ClampedSwiglu`].
const CLAMPED_SLOPE: f32 = 1.702;

/// `gate_up` is \[rows, 2 * width\], gates first; `out` is \[rows, width\]. O(rows * width).
///
/// Rounds as a model in `T` does: after the activation and at the end.
///
/// # Panics
/// The slices do not have the same number of whole rows.
pub fn gated<T: Element>(
    threads: &Threads,
    activation: Activation,
    gate_up: &[T],
    width: usize,
    out: &mut [T],
) {
    assert!(gate_up.len() == 2 * out.len() && out.len().is_multiple_of(width), "whole rows");
    by_row(threads, width, out, |row, out| {
        let (gate, up) = gate_up[2 * row * width..][..2 * width].split_at(width);
        gated_row(activation, gate, up, out);
    });
}

/// The activation of every number: `x` and `out` are \[rows, width\]. O(rows * width).
///
/// # Panics
/// The slices do not have the same number of whole rows, or the activation needs two numbers.
pub fn plain<T: Element>(threads: &Threads, activation: Activation, x: &[T], width: usize, out: &mut [T]) {
    assert!(x.len() == out.len() && out.len().is_multiple_of(width), "whole rows");
    assert!(!matches!(activation, Activation::ClampedSwiglu { .. }), "of gates alone");
    by_row(threads, width, out, |row, out| plain_row(activation, &x[row * width..][..width], out));
}

fn by_row<T: Element>(threads: &Threads, width: usize, out: &mut [T], work: impl Fn(usize, &mut [T]) + Sync) {
    let (rows, operations) = (out.len() / width, out.len() * 4);
    let out = Shared::new(out);
    threads.share(rows, operations, |row| {
        // SAFETY: each row is one piece.
        work(row, unsafe { out.part(row * width, width) });
    });
}

/// 1 / (1 + e^-x); of what is no number, 0.
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    // 1 / (1 + e^-x), by e^-|x|, which cannot overflow.
    let small = exp::<FMA>(-x.abs());
    if x >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) }
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    x * sigmoid::<FMA>(x)
}

/// erfc(z) / 2 of z >= 0, within 2e-7 of itself: the exponential of a polynomial in 1 / (1 + z / 2) (Press et al.,
/// "Numerical Recipes", 2nd edition, 6.2).
#[inline(always)]
fn half_erfc<const FMA: bool>(z: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut p = mul_add::<FMA>(0.170_872_77, t, -0.822_152_2);
    p = mul_add::<FMA>(p, t, 1.488_515_9);
    p = mul_add::<FMA>(p, t, -1.135_204);
    p = mul_add::<FMA>(p, t, 0.278_868_08);
    p = mul_add::<FMA>(p, t, -0.186_288_06);
    p = mul_add::<FMA>(p, t, 0.096_784_18);
    p = mul_add::<FMA>(p, t, 0.374_091_96);
    p = mul_add::<FMA>(p, t, 1.000_023_7);
    p = mul_add::<FMA>(p, t, -1.265_512_2);
    0.5 * t * exp::<FMA>(p - z * z)
}

#[inline(always)]
fn gelu<const FMA: bool>(x: f32) -> f32 {
    let outside = half_erfc::<FMA>(x.abs() * std::f32::consts::FRAC_1_SQRT_2);
    x * if x >= 0.0 { 1.0 - outside } else { outside }
}

#[inline(always)]
fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // (1 + tanh z) / 2 = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
    x * sigmoid::<FMA>(1.595_769 * (x + 0.044_715 * x * x * x))
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    // A NaN stays one.
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn squared_relu(x: f32) -> f32 {
    relu(x) * relu(x)
}

#[inline(always)]
fn xielu<const FMA: bool>(x: f32, positive: f32, negative: f32, slope: f32) -> f32 {
    let bent = if x > 0.0 { positive * x * x } else { negative * (exp::<FMA>(x) - 1.0 - x) };
    mul_add::<FMA>(slope, x, bent)
}

#[inline(always)]
fn each<T: Element>(gate: &[T], up: &[T], out: &mut [T], of: impl Fn(f32) -> f32) {
    for ((to, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *to = T::from_f32(T::from_f32(of(gate.to_f32())).to_f32() * up.to_f32());
    }
}

#[inline(always)]
fn gated_body<T: Element, const FMA: bool>(activation: Activation, gate: &[T], up: &[T], out: &mut [T]) {
    match activation {
        Activation::Silu => each(gate, up, out, silu::<FMA>),
        Activation::Gelu => each(gate, up, out, gelu::<FMA>),
        Activation::GeluTanh => each(gate, up, out, gelu_tanh::<FMA>),
        Activation::Relu => each(gate, up, out, relu),
        Activation::SquaredRelu => each(gate, up, out, squared_relu),
        Activation::Xielu { positive, negative, slope } => {
            each(gate, up, out, |x| xielu::<FMA>(x, positive, negative, slope))
        }
        Activation::ClampedSwiglu { limit } => {
            for ((to, gate), up) in out.iter_mut().zip(gate).zip(up) {
                let (gate, up) = (gate.to_f32(), up.to_f32());
                let gate = if gate > limit { limit } else { gate };
                let up = up.clamp(-limit, limit);
                let glu = T::from_f32(gate * sigmoid::<FMA>(gate * CLAMPED_SLOPE)).to_f32();
                *to = T::from_f32(T::from_f32(up + 1.0).to_f32() * glu);
            }
        }
    }
}

#[inline(always)]
fn plain_body<T: Element, const FMA: bool>(activation: Activation, x: &[T], out: &mut [T]) {
    let of = |x: f32| match activation {
        Activation::Silu => silu::<FMA>(x),
        Activation::Gelu => gelu::<FMA>(x),
        Activation::Relu => relu(x),
        Activation::SquaredRelu => squared_relu(x),
        Activation::Xielu { positive, negative, slope } => xielu::<FMA>(x, positive, negative, slope),
        Activation::GeluTanh | Activation::ClampedSwiglu { .. } => gelu_tanh::<FMA>(x),
    };
    for (to, x) in out.iter_mut().zip(x) {
        *to = T::from_f32(of(x.to_f32()));
    }
}

crate::multiversion!(
    fn gated_row<T: Element>(activation: Activation, gate: &[T], up: &[T], out: &mut [T]) = gated_body
);
crate::multiversion!(
    fn plain_row<T: Element>(activation: Activation, x: &[T], out: &mut [T]) = plain_body
);

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Activation; 7] = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::SquaredRelu,
        Activation::ClampedSwiglu { limit: 7.0 },
        Activation::Xielu { positive: 0.8, negative: 1.1, slope: 0.5 },
    ];

    /// The share of a normal distribution that is below `x`, by Simpson's rule from -12 on.
    fn below(x: f64) -> f64 {
        let density = |at: f64| (-0.5 * at * at).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (start, pieces) = (-12.0, 4000);
        let step = (x.clamp(start, 12.0) - start) / f64::from(pieces);
        let sum: f64 = (0..pieces)
            .map(|piece| {
                let at = start + step * f64::from(piece);
                density(at) + 4.0 * density(at + step / 2.0) + density(at + step)
            })
            .sum();
        sum * step / 6.0
    }

    fn exact(activation: Activation, gate: f64, up: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match activation {
            Activation::Silu => gate * sigmoid(gate) * up,
            Activation::Gelu => gate * below(gate) * up,
            Activation::GeluTanh => {
                let z = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
                0.5 * gate * (1.0 + z.tanh()) * up
            }
            Activation::Relu => gate.max(0.0) * up,
            Activation::SquaredRelu => gate.max(0.0).powi(2) * up,
            Activation::Xielu { positive, negative, slope } => {
                let [positive, negative, slope] = [positive, negative, slope].map(f64::from);
                let bent =
                    if gate > 0.0 { positive * gate.powi(2) } else { negative * (gate.exp_m1() - gate) };
                (bent + slope * gate) * up
            }
            Activation::ClampedSwiglu { limit } => {
                let (gate, limit) = (gate.min(limit.into()), f64::from(limit));
                gate * sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1.0)
            }
        }
    }

    #[test]
    fn the_numbers_of_each() {
        let threads = Threads::new(2).unwrap();
        let gate_up: Vec<f32> = (0..4 * 34).map(|i| (i as f32 - 68.0) * 0.17).collect();
        for activation in ALL {
            let mut out = vec![0.0; 2 * 34];
            gated(&threads, activation, &gate_up, 34, &mut out);
            for (index, &got) in out.iter().enumerate() {
                let (row, i) = (index / 34, index % 34);
                let (gate, up) = (f64::from(gate_up[row * 68 + i]), f64::from(gate_up[row * 68 + 34 + i]));
                let expected = exact(activation, gate, up);
                assert!(
                    (f64::from(got) - expected).abs() <= 2e-6 * expected.abs() + 1e-6,
                    "{activation:?} of {gate} is {expected}, not {got}"
                );
            }
        }
    }

    #[test]
    fn alone_is_with_a_one() {
        let threads = Threads::new(1).unwrap();
        let x: Vec<f32> = (0..40).map(|i| i as f32 * 0.3 - 6.0).collect();
        let gate_up: Vec<f32> = x.iter().copied().chain([1.0; 40]).collect();
        for activation in ALL.into_iter().filter(|of| !matches!(of, Activation::ClampedSwiglu { .. })) {
            let (mut expected, mut out) = (vec![0.0; 40], vec![0.0; 40]);
            gated(&threads, activation, &gate_up, 40, &mut expected);
            plain(&threads, activation, &x, 40, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for activation in ALL {
            let mut out = [0.0f32; 1];
            gated(&Threads::new(1).unwrap(), activation, &[f32::NAN, 1.0], 1, &mut out);
            assert!(out[0].is_nan(), "{activation:?}");
        }
    }
}
