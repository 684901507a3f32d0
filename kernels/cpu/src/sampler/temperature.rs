//! Temperature: logits become weights, e^((logit - best) / temperature). O(vocabulary).

use super::Candidate;
use crate::math::exp_all;

/// Fills `candidates` with every token in the order of the ids; overwrites `logits`.
///
/// `best` is the largest logit and more than minus infinity. Where it is plus infinity, the tokens
/// that reach it weigh 1 and the others 0.
pub fn weigh(logits: &mut [f32], best: f32, temperature: f32, candidates: &mut Vec<Candidate>) {
    if best == f32::INFINITY {
        logits.iter_mut().for_each(|logit| *logit = if *logit == best { 0.0 } else { f32::NEG_INFINITY });
    } else {
        // A division, for a reciprocal may overflow; 0 stays 0 for the best.
        logits.iter_mut().for_each(|logit| *logit = (*logit - best) / temperature);
    }
    exp_all(logits);
    candidates.clear();
    candidates
        .extend(logits.iter().enumerate().map(|(token, &weight)| Candidate { weight, token: token as u32 }));
}
