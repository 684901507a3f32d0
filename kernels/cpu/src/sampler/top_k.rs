//! Top-k: the k most likely tokens (Fan, Lewis and Dauphin, 2018). O(n + k log k).

use super::Candidate;

/// Keeps the `k` most likely, the lower id first of equals, sorted; 0 (or less) keeps all as they are.
pub fn keep(candidates: &mut Vec<Candidate>, k: i32) {
    let Some(k) = usize::try_from(k).ok().filter(|&k| 0 < k && k < candidates.len()) else { return };
    candidates.select_nth_unstable_by(k - 1, Candidate::before);
    candidates.truncate(k);
    candidates.sort_unstable_by(Candidate::before);
}
