//! Verification: drafts hold up to the first that the sampler did not choose too. O(drafts).

use super::rules::Rules;

/// For each of the first `counts.len()` sampling rows, how many of its sampled tokens count: one, and one
/// more for each of its leading drafts that is what was sampled in its place.
///
/// # Panics
/// [`Rules::check_drafts`] finds a fault.
pub fn verify(rules: &Rules<'_>, token_ids: &[i32], tokens: &[i32], counts: &mut [i32]) {
    for (row, count) in counts.iter_mut().enumerate() {
        let last = rules.logit_start[row + 1] as usize - 1;
        let drafts = rules.logit_start[row] as usize..last;
        let holds = |&at: &usize| tokens[at] == token_ids[rules.logit_token[at] as usize + 1];
        *count = 1 + drafts.take_while(holds).count() as i32;
    }
}
