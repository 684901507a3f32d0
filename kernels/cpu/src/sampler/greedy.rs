//! Greedy: the most likely token. O(vocabulary).

/// The first token of the largest logit; a NaN is never larger. 0 where there is none.
pub fn most_likely(logits: &[f32]) -> u32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    for group in logits.chunks(16) {
        for (lane, &logit) in lanes.iter_mut().zip(group) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
}
