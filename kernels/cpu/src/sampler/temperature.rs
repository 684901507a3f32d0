//! Temperature: a logit becomes a weight, e^((logit - best) / temperature). O(1) per token.

use super::order::Row;
use crate::math::exp;

/// Units of a nat in [`Scale::depth`].
const UNITS: f32 = 16384.0;

/// Beyond all exponents of a token with a weight.
const DEEPEST: f32 = 88.0;

/// Makes logits into weights: 1 for the best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    best: f32,
    temperature: f32,
}

impl Scale {
    /// Takes a row in which something is possible, and a temperature above 0.
    ///
    /// Where the best is plus infinity, `row` is made to be 0 there and minus infinity elsewhere.
    pub fn new(row: &mut Row, temperature: f32) -> Self {
        if row.best() == f32::INFINITY {
            row.replace(|logit| if logit == f32::INFINITY { 0.0 } else { f32::NEG_INFINITY });
        }
        Self { best: row.best(), temperature }
    }

    /// The logarithm of the weight of a logit: 0 for the best.
    #[inline(always)]
    pub fn exponent(self, logit: f32) -> f32 {
        // A division, for a reciprocal may overflow.
        (logit - self.best) / self.temperature
    }

    /// The weight of a logit, 0 to 1. Rounded after every operation, none fused, like
    /// [`crate::random::exponential`].
    #[inline(always)]
    pub fn weight(self, logit: f32) -> f32 {
        exp::<false>(self.exponent(logit))
    }

    /// How far below the best a token is, over the temperature: in units of 2^-14.
    pub fn depth(self, logit: f32) -> u32 {
        let below = -self.exponent(logit);
        (below.min(DEEPEST) * UNITS + 0.5) as u32
    }

    /// The logits of what the rules have kept so far, with a weight of at least `least`; minus infinity for the others.
    pub fn left(self, row: &Row, least: f32) -> Vec<f32> {
        let cut = row.cut();
        let mut logits = row.logits()[..row.vocabulary()].to_vec();
        for (token, logit) in logits.iter_mut().enumerate() {
            if !cut.keeps(*logit, token as u32) || self.weight(*logit) < least {
                *logit = f32::NEG_INFINITY;
            }
        }
        logits
    }

    /// The weight in units of 2^-30, to be added up exactly: one of fewer than half a unit counts 0.
    #[inline(always)]
    pub fn mass(self, logit: f32) -> u32 {
        let scaled = self.weight(logit) * 1_073_741_824.0 + 0.5;
        // SAFETY: a weight is between 0 and 1, so that this is between 0.5 and 2^30.
        unsafe { scaled.to_int_unchecked::<i32>() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_have_weights() {
        let of = |logits: &[f32], temperature| {
            let mut row = Row::new();
            row.load(logits, None);
            let scale = Scale::new(&mut row, temperature);
            (0..logits.len()).map(|at| scale.weight(row.group(0)[at])).collect::<Vec<_>>()
        };
        const I: f32 = f32::INFINITY;
        assert_eq!(of(&[3.0, -I, f32::NAN], 1.0), [1.0, 0.0, 0.0]);
        assert_eq!(of(&[3.0, 2.0, 3.0], 1e-40), [1.0, 0.0, 1.0]);
        assert_eq!(of(&[3.0, I, I], 0.5), [0.0, 1.0, 1.0]);
        assert_eq!(of(&[3.0e38, -3.0e38], 1.0), [1.0, 0.0]);
        assert_eq!(of(&[3.0, 2.0, -I], I), [1.0, 1.0, 0.0]);
        let scale = Scale { best: 0.0, temperature: 1.0 };
        assert_eq!([0.0, -20.0, -21.4, -22.0, -I].map(|l| scale.mass(l)), [1 << 30, 2, 1, 0, 0]);
    }
}
