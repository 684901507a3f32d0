//! Dynamic temperature: lower where the model is sure, higher where it is not (llama.cpp, after koboldcpp's entropy
//! sampling by kalomaze, 2023). O(n).
//!
//! With H the entropy of the n tokens that are possible, at a temperature of 1, the temperature is
//! `low + (high - low) * (H / ln n)^exponent`, low and high being `range` below and above the one that was asked for.
//! With the mass Z of all tokens, in units of the best one's, and D the mean of their depths below it, H = ln Z + D: both are
//! sums of integers. The rest is f32, rounded after every operation and none fused.

use super::order::Row;
use super::temperature::Scale;
use crate::math::{exp, ln};

/// The temperature of a row in which something is possible; as it is where `range` is 0 or no number.
pub fn temperature(row: &mut Row, temperature: f32, range: f32, exponent: f32) -> f32 {
    if range.is_nan() || range <= 0.0 {
        return temperature;
    }
    let scale = Scale::new(row, 1.0);
    let possible = row.logits().iter().filter(|logit| **logit > f32::NEG_INFINITY);
    let (mut count, mut total, mut depths) = (0u32, 0u64, 0u64);
    for &logit in possible {
        let mass = u64::from(scale.mass(logit));
        count += 1;
        total += mass;
        depths += mass * u64::from(scale.depth(logit));
    }
    let low = (temperature - range).max(0.0);
    let high = temperature + range;
    let share = match count {
        1 => 0.0,
        _ => power(entropy(total, depths) / ln(count as f32), exponent),
    };
    (low + (high - low) * share).max(f32::MIN_POSITIVE)
}

/// The entropy in nats of tokens of a mass and the sum of their depths, each times its mass.
fn entropy(total: u64, depths: u64) -> f32 {
    const MASSES: f32 = 1.0 / 1_073_741_824.0;
    const UNITS: f32 = 1.0 / 16384.0;
    ln(total as f32 * MASSES) + depths as f32 / total as f32 * UNITS
}

/// A number between 0 and 1 to a power above 0.
fn power(base: f32, exponent: f32) -> f32 {
    match base {
        _ if base < f32::MIN_POSITIVE => 0.0,
        _ if base >= 1.0 => 1.0,
        _ => exp::<false>(exponent * ln(base)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(probabilities: &[f32], asked: f32, range: f32, exponent: f32) -> f32 {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut row = Row::new();
        row.load(&logits, None);
        temperature(&mut row, asked, range, exponent)
    }

    #[test]
    fn it_follows_the_entropy() {
        let entropy =
            |p: &[f32]| -> f64 { -p.iter().map(|&p| f64::from(p) * f64::from(p).ln()).sum::<f64>() };
        let cases: [&[f32]; 3] = [&[0.7, 0.2, 0.1], &[0.25, 0.25, 0.3, 0.2], &[0.99, 0.005, 0.005]];
        for p in cases {
            let share = entropy(p) / (p.len() as f64).ln();
            for (asked, range, exponent) in [(1.0f32, 0.5f32, 1.0f32), (0.8, 0.8, 2.0), (1.5, 3.0, 0.3)] {
                let low = (asked - range).max(0.0);
                let wanted =
                    f64::from(low) + f64::from(asked + range - low) * share.powf(f64::from(exponent));
                let found = f64::from(of(p, asked, range, exponent));
                assert!((found - wanted).abs() < 5e-4, "{found}, exactly {wanted}");
            }
        }
    }

    #[test]
    fn extremes_have_temperatures() {
        assert_eq!(of(&[0.5, 0.5], 1.0, 0.0, 1.0), 1.0);
        assert_eq!(of(&[0.5, 0.5], 1.0, f32::NAN, 1.0), 1.0);
        assert_eq!(of(&[0.25; 4], 1.0, 0.5, 1.0), 1.5);
        assert_eq!(of(&[1.0], 1.0, 0.5, 1.0), 0.5);
        assert_eq!(of(&[1.0, 0.0], 0.5, 0.5, 1.0), f32::MIN_POSITIVE);
    }
}
