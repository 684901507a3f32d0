//! Log-probabilities of the chosen token and of the most likely ones: the log-softmax of a row's logits.
//!
//! ```text
//!  logits ─► the largest m, and the k first in order ─► s = Σ e^(l - m) ─► l - m - ln s  of each of them
//! ```
//!
//! The k first are those of the sampler's order: the larger logit first, the lower id first of equals; NaN counts as
//! minus infinity, and where logits are plus infinity those tokens alone share the probability.
//! O(vocabulary) a row while the k largest change seldom, O(vocabulary k) at worst.

use crate::element::Element;
use crate::math::exp;
use crate::multiversion;
use crate::threads::{Shared, Threads};

/// Logits of a partial sum: each is summed in lanes, and the partial sums in f64.
const PART: usize = 1024;
const LANES: usize = 16;

/// Where the results of a step's logits rows go, by logits row; nothing is written for rows that want none.
pub struct Table<'a> {
    /// The most likely tokens, `width` for each row; -1 beyond the number that the row asked for.
    pub tokens: &'a mut [i32],
    /// The log-probabilities of those tokens, in the same places.
    pub logprobs: &'a mut [f32],
    /// The log-probability of the chosen token.
    pub chosen: &'a mut [f32],
    /// The most tokens of a row.
    pub width: usize,
}

/// Fills `table` for the logits rows `first..first + rows` that want it: `wanted`, by logits row of the step, is how many
/// most likely tokens, or -1. `logits` are \[rows, vocabulary\], `chosen` the tokens by logits row of the step.
///
/// # Panics
/// A slice is too short for what it is asked for.
#[allow(clippy::too_many_arguments, reason = "as the kernel is called")]
pub fn top_logprobs<T: Element>(
    threads: &Threads,
    logits: &[T],
    vocabulary: usize,
    wanted: &[i32],
    chosen: &[i32],
    first: usize,
    rows: usize,
    table: Table<'_>,
) {
    let width = table.width;
    let (tokens, logprobs, of_chosen) =
        (Shared::new(table.tokens), Shared::new(table.logprobs), Shared::new(table.chosen));
    threads.share(rows, rows * vocabulary * 4, |index| {
        let row = first + index;
        let Ok(count) = usize::try_from(wanted[row]) else { return };
        let logits = &logits[index * vocabulary..][..vocabulary];
        // SAFETY: each row is one piece.
        let (tokens, logprobs, of_chosen) = unsafe {
            (
                tokens.part(row * width, width),
                logprobs.part(row * width, width),
                &mut of_chosen.part(row, 1)[0],
            )
        };
        tokens.fill(-1);
        let count = count.min(width);
        let (tokens, logprobs) = (&mut tokens[..count], &mut logprobs[..count]);
        first_in_order(logits, tokens, logprobs);
        let largest = largest(logits);
        let log_sum = sum(logits, largest).ln() as f32;
        let logprob = |logit: f32| match above(logit, largest) {
            // Nothing is possible, or no more than this one is asked for.
            f32::NEG_INFINITY => f32::NEG_INFINITY,
            difference => difference - log_sum,
        };
        logprobs.iter_mut().for_each(|value| *value = logprob(*value));
        let logit = usize::try_from(chosen[row]).ok().and_then(|token| logits.get(token));
        *of_chosen = logprob(number(logit.map_or(f32::NEG_INFINITY, |logit| logit.to_f32())));
    });
}

fn number(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// How far a logit is from the largest, which may be infinite.
fn above(logit: f32, largest: f32) -> f32 {
    if logit == f32::NEG_INFINITY {
        f32::NEG_INFINITY
    } else if logit == largest {
        0.0
    } else {
        logit - largest
    }
}

/// The first of the order and their logits; where there are fewer, the rest stays as it is.
fn first_in_order<T: Element>(logits: &[T], tokens: &mut [i32], values: &mut [f32]) {
    let count = tokens.len();
    if count == 0 {
        return;
    }
    let (mut held, mut least) = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate() {
        let logit = logit.to_f32();
        // Not so for NaN. Of equals the first stay.
        if logit > least {
            let at = values[..held].partition_point(|value| *value >= logit);
            held = (held + 1).min(count);
            values[at..held].rotate_right(1);
            tokens[at..held].rotate_right(1);
            (values[at], tokens[at]) = (logit, token as i32);
            if held == count {
                least = values[count - 1];
            }
        }
    }
    values[held..].fill(f32::NEG_INFINITY);
}

multiversion!(
    fn largest<T: Element>(logits: &[T]) -> f32 = largest_of
);
multiversion!(
    fn sum<T: Element>(logits: &[T], largest: f32) -> f64 = sum_of
);

#[inline(always)]
fn largest_of<T: Element, const FMA: bool>(logits: &[T]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            let logit = logit.to_f32();
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    rest.iter().map(|logit| logit.to_f32()).chain(lanes).fold(f32::NEG_INFINITY, f32::max)
}

#[inline(always)]
fn sum_of<T: Element, const FMA: bool>(logits: &[T], largest: f32) -> f64 {
    if largest.is_infinite() {
        return logits.iter().filter(|logit| logit.to_f32() == largest).count() as f64;
    }
    let mut total = 0.0;
    for part in logits.chunks(PART) {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = part.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                *lane += exp::<FMA>(logit.to_f32() - largest);
            }
        }
        total += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        total += rest.iter().map(|logit| f64::from(exp::<FMA>(logit.to_f32() - largest))).sum::<f64>();
    }
    total
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    type Rows = (Vec<i32>, Vec<f32>, Vec<f32>);

    /// Every row of `logits`, of which `wanted` says what is wanted; the first is left to another call.
    fn run<T: Element>(
        logits: &[T],
        vocabulary: usize,
        wanted: &[i32],
        chosen: &[i32],
        width: usize,
    ) -> Rows {
        let rows = wanted.len();
        let mut out = (vec![-7; rows * width], vec![-7.0; rows * width], vec![-7.0; rows]);
        let threads = Threads::new(2).unwrap();
        for (first, count) in [(0, 1), (1, rows - 1)] {
            let table = Table { tokens: &mut out.0, logprobs: &mut out.1, chosen: &mut out.2, width };
            let logits = &logits[first * vocabulary..];
            top_logprobs(&threads, logits, vocabulary, wanted, chosen, first, count, table);
        }
        out
    }

    /// The definition, in f64.
    fn defined(logits: &[f32]) -> Vec<(f64, usize)> {
        let largest = logits.iter().copied().filter(|l| !l.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        let difference = |l: f32| match l == largest {
            true => 0.0,
            false if l.is_nan() || largest == f32::INFINITY => f64::NEG_INFINITY,
            false => f64::from(l) - f64::from(largest),
        };
        let sum: f64 = logits.iter().map(|l| difference(*l).exp()).sum();
        logits.iter().enumerate().map(|(token, l)| (difference(*l) - sum.ln(), token)).collect()
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            20 => -20.0f32..20.0,
            10 => (-8i32..8).prop_map(|step| step as f32 / 2.0),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
        ]
    }

    proptest! {
        #[test]
        fn they_are_the_log_softmax_in_order(
            logits in prop::collection::vec(logit(), 1..3000),
            count in 0usize..21,
            infinite in prop::option::weighted(0.05, any::<prop::sample::Index>()),
            chosen in any::<prop::sample::Index>(),
        ) {
            let mut logits = logits;
            if let Some(at) = infinite {
                *at.get_mut(&mut logits) = f32::INFINITY;
            }
            prop_assume!(logits.iter().any(|logit| *logit > f32::NEG_INFINITY));
            let vocabulary = logits.len();
            let chosen = chosen.index(vocabulary);
            let all = defined(&logits);
            let mut order: Vec<_> =
                all.iter().copied().filter(|(_, token)| logits[*token] > f32::NEG_INFINITY).collect();
            order.sort_by(|a, b| {
                logits[b.1].partial_cmp(&logits[a.1]).unwrap().then(a.1.cmp(&b.1))
            });
            order.truncate(count);
            let three = logits.repeat(3);
            let wanted = [-1, count as i32, 0];
            let (tokens, logprobs, of_chosen) = run(&three, vocabulary, &wanted, &[chosen as i32; 3], 20);
            prop_assert!(tokens[..20].iter().all(|token| *token == -7) && of_chosen[0] == -7.0);
            let row = &tokens[20..40];
            let found: Vec<_> = row.iter().take_while(|token| **token >= 0).map(|token| *token as usize).collect();
            prop_assert_eq!(&found, &order.iter().map(|(_, token)| *token).collect::<Vec<_>>());
            prop_assert!(row[found.len()..].iter().all(|token| *token == -1));
            for (got, (wanted, _)) in logprobs[20..].iter().zip(&order) {
                let near = (f64::from(*got) - wanted).abs() < 1e-5 * (1.0 + wanted.abs());
                prop_assert!(near || f64::from(*got) == *wanted, "{} {}", got, wanted);
            }
            let wanted = all[chosen].0;
            for got in &of_chosen[1..] {
                let near = (f64::from(*got) - wanted).abs() < 1e-5 * (1.0 + wanted.abs());
                prop_assert!(near || f64::from(*got) == wanted, "{} {}", got, wanted);
            }
        }
    }

    #[test]
    fn what_is_impossible_has_no_probability() {
        let nothing = [f32::NEG_INFINITY, f32::NAN].repeat(4);
        let (tokens, logprobs, chosen) = run(&nothing, 4, &[2, 2], &[-1, 1], 2);
        assert_eq!((tokens, chosen), (vec![-1; 4], vec![f32::NEG_INFINITY; 2]));
        assert_eq!(logprobs, [f32::NEG_INFINITY; 4]);
        let two = [f32::INFINITY, 3.0, f32::INFINITY, f32::NAN].repeat(2);
        let (tokens, logprobs, chosen) = run(&two, 4, &[3, 0], &[2, 1], 3);
        assert_eq!(tokens[..3], [0, 2, 1]);
        assert_eq!(logprobs[..3], [-(2f32.ln()), -(2f32.ln()), f32::NEG_INFINITY]);
        assert_eq!(chosen, [-(2f32.ln()), f32::NEG_INFINITY]);
    }

    #[test]
    fn bfloat16_is_read_exactly() {
        let logits: Vec<f32> =
            (0..600).map(|at| bf16::from_f32((at * 37 % 101) as f32 / 9.0).to_f32()).collect();
        let short: Vec<bf16> = logits.iter().map(|logit| bf16::from_f32(*logit)).collect();
        let args = (&[5, 5][..], &[7, 9][..], 5);
        assert_eq!(run(&short, 300, args.0, args.1, args.2), run(&logits, 300, args.0, args.1, args.2));
    }
}
