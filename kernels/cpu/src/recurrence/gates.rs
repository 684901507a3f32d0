//! The gates of a recurrence: how much of a state decays, and how much of a token it takes in.

use crate::activation;
use crate::math::{exp, ln};

/// ln(1 + e^x), within 3 units in the last place; what is no number stays so.
#[inline(always)]
pub fn softplus<const FMA: bool>(x: f32) -> f32 {
    // By e^-|x|, which cannot overflow; and ln(1 + e) = e * ln(u) / (u - 1), where u is 1 + e as it was rounded.
    let small = exp::<FMA>(-x.abs());
    let rounded = 1.0 + small;
    let logarithm = if rounded == 1.0 { small } else { small * (ln(rounded) / (rounded - 1.0)) };
    let above = if x > 0.0 { x } else { 0.0 };
    if x.is_nan() { x } else { above + logarithm }
}

/// e^-x of x >= 0: what is left of a state; what is no number stays so.
#[inline(always)]
pub fn left<const FMA: bool>(x: f32) -> f32 {
    if x.is_nan() { x } else { exp::<FMA>(-x) }
}

/// 1 / (1 + e^-x); what is no number stays so.
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    if x.is_nan() { x } else { activation::sigmoid::<FMA>(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_close_to_the_exact_one() {
        for step in -4_000..4_000 {
            let x = step as f32 * 0.02;
            let exact = f64::from(x).exp().ln_1p();
            for ours in [softplus::<false>(x), softplus::<true>(x)] {
                assert!((f64::from(ours) - exact).abs() <= 5e-7 * exact, "{x}: {ours}, exactly {exact}");
            }
        }
        assert_eq!(softplus::<true>(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus::<true>(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for of in [softplus::<true>, left::<true>, sigmoid::<true>] {
            assert!(of(f32::NAN).is_nan());
        }
    }
}
