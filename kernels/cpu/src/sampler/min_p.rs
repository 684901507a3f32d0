//! Min-p: what is likely enough beside the most likely (Nguyen et al., 2024). O(1).

/// The least weight that is kept. The most likely token weighs 1 and outlives every rule before this
/// one; a weight of 0 is never drawn. A NaN keeps all.
pub fn least_weight(p: f32) -> f32 {
    if p > f32::MIN_POSITIVE { p.min(1.0) } else { f32::MIN_POSITIVE }
}
