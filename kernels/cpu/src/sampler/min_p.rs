//! Min-p: what is likely enough beside the most likely (Nguyen et al., 2024). O(n).

use super::Candidate;

/// Drops tokens less likely than `p` times the most likely of those here; the order stays.
pub fn keep(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        // The most likely token outlives every rule before this one, and weighs 1.
        candidates.retain(|candidate| candidate.weight >= p.min(1.0));
    }
}
