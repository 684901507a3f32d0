//! Top-n-sigma: what is within n standard deviations of the largest logit (Tang et al., "Top-nσ: Not All Logits Are You
//! Need", 2024). O(n).
//!
//! The standard deviation is that of all possible logits, before any temperature: both sides of the comparison scale
//! alike. Logits are counted as integers, how far they are below the best in units of 2^-11 and at most 2^22 units, so that
//! no sum depends on its order; the comparison is of squares in f64, each operation rounded once.

use super::order::Row;

/// Units of a logit.
const UNITS: f32 = 2048.0;

/// Deeper logits count as so deep.
const DEEPEST: f32 = 2048.0;

/// How far below the best a possible logit is, in units.
fn depth(best: f32, logit: f32) -> i64 {
    ((best - logit).min(DEEPEST) * UNITS + 0.5) as i64
}

/// Keeps the tokens whose logits are at most `n` standard deviations below the largest; 0 (or less) keeps all, NaN too.
pub fn keep(row: &mut Row, n: f32) {
    let best = row.best();
    if n.is_nan() || n <= 0.0 || best == f32::INFINITY {
        return;
    }
    let depths = || row.logits().iter().filter(|logit| **logit > f32::NEG_INFINITY).map(|l| depth(best, *l));
    let count = depths().count() as i64;
    let mean = depths().sum::<i64>() / count;
    let squares: i64 = depths().map(|depth| (depth - mean) * (depth - mean)).sum();
    let widest = f64::from(n) * f64::from(n) * squares as f64;
    let inside = |depth: i64| (depth * depth) as f64 * count as f64 <= widest;
    // The order of tokens is that of their depths.
    row.replace(|logit| {
        let kept = logit > f32::NEG_INFINITY && inside(depth(best, logit));
        if kept { logit } else { f32::NEG_INFINITY }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(logits: &[f32], n: f32) -> Vec<usize> {
        let mut row = Row::new();
        row.load(logits, None);
        keep(&mut row, n);
        (0..logits.len()).filter(|&token| row.logits()[token] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn what_is_near_the_largest_is_kept() {
        // Their standard deviation is 2.
        let logits = [1.0, 3.0, 3.0, 3.0, 4.0, 4.0, 6.0, 8.0];
        assert_eq!(kept(&logits, 0.9), [7]);
        assert_eq!(kept(&logits, 1.01), [6, 7]);
        assert_eq!(kept(&logits, 2.01), [4, 5, 6, 7]);
        assert_eq!(kept(&logits, 0.0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(kept(&logits, f32::NAN), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_impossible_has_no_part_in_it() {
        const I: f32 = f32::INFINITY;
        assert_eq!(kept(&[0.0, -I, 2.0, f32::NAN], 1.5), [2]);
        assert_eq!(kept(&[0.0, -I, 2.0, f32::NAN], 2.5), [0, 2]);
        assert_eq!(kept(&[1.5; 5], 0.01), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&[3e38, -3e38, 2.9e38], 1.0), [0]);
    }
}
