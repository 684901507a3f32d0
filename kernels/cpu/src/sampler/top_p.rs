//! Top-p, or nucleus: the fewest tokens that reach a probability (Holtzman et al., 2020).
//!
//! Only as many tokens are sorted as it takes: the most likely 64, then four times as many, and so on.
//! O(n + m log m) when m tokens are kept.

use super::Candidate;

const FIRST_LOOK: usize = 64;

/// Keeps the fewest most likely tokens whose probabilities, among those here, reach `p`; at least
/// one, sorted. 1 or more keeps all as they are; NaN too.
pub fn keep(candidates: &mut Vec<Candidate>, p: f32) {
    if p.is_nan() || p >= 1.0 || candidates.is_empty() {
        return;
    }
    let wanted = f64::from(p) * candidates.iter().map(|c| f64::from(c.weight)).sum::<f64>();
    let (mut sorted, mut reached) = (0, 0.0);
    let mut look = FIRST_LOOK;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let count = look.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, Candidate::before);
        }
        rest[..count].sort_unstable_by(Candidate::before);
        for candidate in &rest[..count] {
            reached += f64::from(candidate.weight);
            sorted += 1;
            if reached >= wanted {
                candidates.truncate(sorted);
                return;
            }
        }
        look *= 4;
    }
}
