//! Locally typical sampling: tokens about as surprising as the distribution is on average (Meister, Pimentel, Wiher and
//! Cotterell, "Locally Typical Sampling", 2023).
//!
//! A token's distance is |-ln p - H|, H being the entropy of the tokens that are left. With e = (logit - best) /
//! temperature, -ln p is a constant less e, and H the same constant less the mean of e: the constant cancels. Distances
//! are integers, in units of 2^-14, and so are probabilities ([`Scale::mass`]), so that no sum depends on its order.
//!
//! O(n log d) for distances up to d.

use super::order::Row;
use super::temperature::Scale;

/// A distance that no token with a mass exceeds: masses end before e^-22.
const FARTHEST: u32 = 22 << 14;

/// Keeps the tokens nearest to the entropy whose probabilities among those kept so far, with a weight of at least `least`,
/// reach `p`: the fewest, but all that are as near as the last of these. 1 or more keeps all of them; NaN too.
///
/// The best may be dropped; `scale` stays that of the row as it was.
pub fn keep(row: &mut Row, p: f32, scale: Scale, least: f32) {
    if p.is_nan() || p >= 1.0 {
        return;
    }
    let mut logits = scale.left(row, least);
    let likely: Vec<(u32, u64)> = logits
        .iter()
        .map(|&logit| (logit, u64::from(scale.mass(logit))))
        .filter(|&(_, mass)| mass > 0)
        .map(|(logit, mass)| (scale.depth(logit), mass))
        .collect();
    let total: u64 = likely.iter().map(|&(_, mass)| mass).sum();
    let mean = (likely.iter().map(|&(depth, mass)| u64::from(depth) * mass).sum::<u64>() / total) as u32;
    let wanted = ((f64::from(p) * total as f64).ceil() as u64).max(1);
    let (mut near, mut far) = (0, FARTHEST);
    while near < far {
        let tried = near.midpoint(far);
        let inside = likely.iter().filter(|(depth, _)| depth.abs_diff(mean) <= tried);
        if inside.map(|&(_, mass)| mass).sum::<u64>() >= wanted {
            far = tried;
        } else {
            near = tried + 1;
        }
    }
    for logit in &mut logits {
        if scale.depth(*logit).abs_diff(mean) > far {
            *logit = f32::NEG_INFINITY;
        }
    }
    row.load(&logits, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::min_p::least_weight;

    fn kept(probabilities: &[f32], p: f32, best: usize) -> Vec<usize> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut row = Row::new();
        row.load(&logits, None);
        let scale = Scale::new(&mut row, 1.0);
        row.keep_first(best);
        keep(&mut row, p, scale, least_weight(0.0));
        (0..logits.len())
            .filter(|&token| {
                row.logits()[token] > f32::NEG_INFINITY && row.cut().keeps(row.logits()[token], token as u32)
            })
            .collect()
    }

    #[test]
    fn the_likeliest_may_be_too_likely() {
        // H = 1.49: the surprises 0.69 and 2.30 are farther from it than 1.20 of the second.
        let probabilities = [0.5, 0.3, 0.1, 0.05, 0.05];
        assert_eq!(kept(&probabilities, 0.2, 5), [1]);
        assert_eq!(kept(&probabilities, 0.5, 5), [0, 1]);
        assert_eq!(kept(&probabilities, 0.9, 5), [0, 1, 2]);
        assert_eq!(kept(&probabilities, 1.0, 5), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&probabilities, 0.0, 5), [1]);
        assert_eq!(kept(&probabilities, f32::NAN, 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_equally_near_stays_together() {
        assert_eq!(kept(&[0.25; 4], 0.1, 4), [0, 1, 2, 3]);
        assert_eq!(kept(&[0.25; 4], 0.1, 2), [0, 1], "what is dropped before does not come back");
    }
}
