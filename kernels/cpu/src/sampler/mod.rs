//! From logits to tokens: one file a rule, applied in the order of the files' use in `choose`.
//!
//! A *sampling row* is a sequence that is sampled in this step, a *logits row* one position of it: one, and
//! one more for each draft token that it brought.
//!
//! ```text
//! tokens of the step   a a a D D | b | c c D      D: drafts
//! logit_token              2 3 4   5     7 8      the token whose logits these are
//! logit_row                0 0 0   1     2 2
//! logit_start              0       3     4    6
//! ```
//!
//! The token of a logits row is a pure function of its logits, its mask and the rules, seed and position of
//! its sampling row: of nothing else in the step, and in particular of no draft. [`verify`] can therefore
//! say which drafts hold by comparing, and speculation changes no token. All arithmetic is IEEE f32 in a
//! fixed order or exact integers, so that another device can come to the same tokens bit by bit.
//!
//! Logits may be penalized before all of that ([`penalties`]), in place.
//!
//! Candidates are *in order*: the larger logit first, the lower id first of equals. Every rule but
//! min-p, typical-p and XTC keeps the first of them ([`order::Cut`]).
//!
//! A NaN counts as minus infinity; where logits are plus infinity, those tokens alone share the
//! probability; where nothing is possible there is no token, which is said by -1. A mask that allows
//! one token chooses it whatever its logit is, NaN too: the logits are not looked at.
//!
//! O(vocabulary) per row, and O(n log n) for the n tokens that top-k or top-p sorts.

pub mod dynamic;
pub mod greedy;
pub mod logprobs;
pub mod mask;
pub mod min_p;
pub mod order;
pub mod penalties;
pub mod race;
pub mod rules;
pub mod sampling_row;
pub mod temperature;
#[cfg(test)]
mod tests;
pub mod top_k;
pub mod top_n_sigma;
pub mod top_p;
pub mod typical;
pub mod verify;
pub mod xtc;

use std::cell::RefCell;

use crate::element::Element;
use crate::random::Stream;
use crate::threads::{Shared, Threads};
use mask::Allowed;
use order::Row;
pub use rules::Rules;
pub use sampling_row::SamplingRow;

thread_local! {
    /// What the row that this thread works on needs.
    static ROW: RefCell<Row> = const { RefCell::new(Row::new()) };
}

/// Chooses a token for each of the logits rows `first..first + out.len()`, whose `logits` these are,
/// \[out.len(), vocabulary\]. O(vocabulary) per row.
///
/// # Panics
/// [`Rules::check`] finds a fault, or `logits` is too short.
pub fn sample<T: Element>(
    threads: &Threads,
    logits: &[T],
    vocabulary: usize,
    rules: &Rules<'_>,
    first: usize,
    out: &mut [i32],
) {
    let rows = out.len();
    let out = Shared::new(out);
    threads.share(rows, rows * vocabulary * 4, |index| {
        let logits = &logits[index * vocabulary..][..vocabulary];
        let token = ROW.with_borrow_mut(|row| choose(logits, rules, first + index, row));
        // SAFETY: each row is one piece.
        unsafe { out.part(index, 1)[0] = token };
    });
}

fn choose<T: Element>(logits: &[T], rules: &Rules<'_>, logits_row: usize, row: &mut Row) -> i32 {
    let allowed = rules.mask(logits_row).map(|words| mask::allowed(words, logits.len()));
    match allowed {
        Some(Allowed::None) => return -1,
        Some(Allowed::One(token)) => return token as i32,
        Some(Allowed::Several) | None => row.load(logits, rules.mask(logits_row)),
    }
    let best = row.best();
    if best == f32::NEG_INFINITY {
        return -1;
    }
    let rule = &rules.sampling[rules.logit_row[logits_row] as usize];
    if rule.temperature.is_nan() || rule.temperature <= 0.0 {
        return greedy::most_likely(row) as i32;
    }
    top_n_sigma::keep(row, rule.top_n_sigma);
    let warmth = dynamic::temperature(row, rule.temperature, rule.dynatemp_range, rule.dynatemp_exponent);
    let scale = temperature::Scale::new(row, warmth);
    top_k::keep(row, rule.top_k);
    top_p::keep(row, rule.top_p, scale);
    let least = min_p::least_weight(rule.min_p);
    typical::keep(row, rule.typical_p, scale, least);
    let stream = Stream::new(rule.seed, rules.position(logits_row));
    xtc::exclude(row, rule.xtc_probability, rule.xtc_threshold, scale, least, stream);
    race::first_to_arrive(row, scale, least, stream) as i32
}
