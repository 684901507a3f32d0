//! Finds how many draft tokens each row of a step gets, so that the step yields the most tokens a second.
//!
//! ```text
//!  row 0   .9 .8 .7 .6        gains: the probability that this token and all before it are accepted
//!  row 1   .5 .2              taken in order of gain: .9 .8 .7 .6 .5 .2, while (rows + Σ gains) / time grows
//! ```
//!
//! Gains fall along a row, so that the best tokens of the batch are a beginning of each row's draft. They are
//! sorted by counting in `BINS` bins: O(tokens + bins) for each number of iterations of the draft model.

use super::super::offers::{Length, Offers};

/// Bins of gains.
const BINS: usize = 128;

fn bin(gain: f32) -> usize {
    ((gain * BINS as f32) as usize).min(BINS - 1)
}

/// The decision for a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Decision {
    /// Expected tokens per unit of time.
    pub rate: f32,
    /// Draft tokens in the step.
    pub tokens: usize,
    /// Iterations of the device's draft model.
    pub iterations: usize,
    /// The last bin that is taken, and how many of its tokens.
    last: (usize, usize),
}

/// The best lengths with exactly `iterations` of the draft model and between `least` and `most` draft tokens; `time`
/// tells how long a step with a number of draft tokens takes.
pub fn decide(
    offers: &Offers,
    iterations: usize,
    (least, most): (usize, usize),
    time: impl Fn(usize) -> f32,
) -> Decision {
    let mut bins = [(0usize, 0.0f32); BINS];
    for &row in &offers.rows {
        for gain in offers.best(row, iterations).1 {
            let bin = &mut bins[bin(gain)];
            *bin = (bin.0 + 1, bin.1 + gain);
        }
    }
    let (mut tokens, mut expected) = (0, offers.len() as f32);
    let rate = if least > 0 { 0.0 } else { expected / time(0) };
    let mut decision = Decision { rate, iterations, ..Decision::default() };
    for (at, &(count, sum)) in bins.iter().enumerate().rev().filter(|(_, bin)| bin.0 > 0) {
        let taken = count.min(most - tokens);
        tokens += taken;
        expected += sum * taken as f32 / count as f32;
        let rate = expected / time(tokens);
        if rate > decision.rate && tokens >= least {
            decision = Decision { rate, tokens, iterations, last: (at, taken) };
        }
        if tokens == most {
            break;
        }
    }
    decision
}

/// The lengths that the decision gives each row, in their order.
pub fn assign(offers: &Offers, decision: &Decision, lengths: &mut Vec<Length>) {
    let (last, mut left) = decision.last;
    lengths.extend(offers.rows.iter().map(|&row| {
        if decision.tokens == 0 {
            return Length::default();
        }
        let (on_device, gains) = offers.best(row, decision.iterations);
        let taken = gains.take_while(|&gain| {
            let take = bin(gain) > last || (bin(gain) == last && left > 0);
            left -= usize::from(take && bin(gain) == last);
            take
        });
        let taken = taken.count();
        let host = if on_device { taken.min(row.forced) } else { taken };
        Length { host: host as u16, device: (taken - host) as u16 }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offers(rows: &[(&[f32], usize, &[f32])]) -> Offers {
        let mut offers = Offers::default();
        for &(host, forced, device) in rows {
            offers.push(host.iter().copied(), forced, device.iter().copied());
        }
        offers
    }

    fn lengths(offers: &Offers, iterations: usize, time: impl Fn(usize) -> f32) -> (Decision, Vec<Length>) {
        let decision = decide(offers, iterations, (0, usize::MAX), time);
        let mut lengths = vec![];
        assign(offers, &decision, &mut lengths);
        (decision, lengths)
    }

    const fn host(host: u16) -> Length {
        Length { host, device: 0 }
    }

    #[test]
    fn free_tokens_are_all_taken_and_dear_ones_not() {
        let offers = offers(&[(&[0.9, 0.9, 0.9], 0, &[]), (&[], 0, &[]), (&[0.5, 0.5], 0, &[])]);
        assert_eq!(lengths(&offers, 0, |_| 1.0).1, [host(3), host(0), host(2)]);
        // A token more costs a sixth of the rest: with 3 rows those of a gain above about a half pay.
        assert_eq!(lengths(&offers, 0, |n| 1.0 + n as f32 / 6.0).1, [host(3), host(0), host(0)]);
        assert_eq!(lengths(&offers, 0, |n| 1.0 + n as f32).1, [host(0); 3]);
    }

    #[test]
    fn the_device_drafts_where_it_is_better_and_after_what_is_forced() {
        let offers = offers(&[(&[1.0, 0.3], 1, &[0.8, 0.8]), (&[0.9, 0.9], 0, &[0.8, 0.8])]);
        let (decision, found) = lengths(&offers, 2, |_| 1.0);
        assert_eq!(found, [Length { host: 1, device: 2 }, host(2)]);
        assert_eq!((decision.tokens, decision.iterations), (5, 2));
        assert_eq!(lengths(&offers, 0, |_| 1.0).1, [host(2), host(2)]);
        let mut all = vec![];
        offers.everything(&mut all);
        assert_eq!(all, [host(2), host(2)]);
    }

    #[test]
    fn no_more_than_is_allowed() {
        let offers = offers(&[(&[0.9; 8], 0, &[]), (&[0.8; 8], 0, &[])]);
        let decision = decide(&offers, 0, (0, 3), |_| 1.0);
        assert_eq!(decision.tokens, 3);
        let decision = decide(&offers, 0, (1, 16), |n| 1.0 + n as f32);
        assert_eq!(decision.tokens, 1, "at least one, although none would be better");
    }

    proptest! {
        /// The assigned lengths are those decided, and no other beginning of the sorted gains is better.
        #[test]
        fn as_good_as_trying_all(rows in prop::collection::vec(prop::collection::vec(0.0f32..1.0, 0..6), 1..6),
                                 slope in 0.0f32..0.5) {
            let mut offers = Offers::default();
            rows.iter().for_each(|row| offers.push(row.iter().copied(), 0, std::iter::empty()));
            let time = |n: usize| 1.0 + slope * n as f32;
            let (decision, found) = lengths(&offers, 0, time);
            let assigned: usize = found.iter().map(|length| usize::from(length.host)).sum();
            prop_assert_eq!(assigned, decision.tokens);
            let rate = |lengths: &[usize]| {
                let expected: f32 = rows.iter().zip(lengths).map(|(row, &length)| {
                    (1..=length).map(|end| row[..end].iter().product::<f32>()).sum::<f32>()
                }).sum();
                (rows.len() as f32 + expected) / time(lengths.iter().sum())
            };
            let mut best = rate(&vec![0; rows.len()]);
            let mut gains = offers.gains.clone();
            gains.sort_by(|a, b| b.total_cmp(a));
            for least in gains {
                let lengths: Vec<_> = offers.rows.iter().map(|offer| {
                    let row = &offers.gains[offer.first..][..offer.host];
                    row.iter().take_while(|&&gain| gain >= least).count()
                }).collect();
                best = best.max(rate(&lengths));
            }
            let lengths: Vec<_> = found.iter().map(|length| usize::from(length.host)).collect();
            prop_assert!(rate(&lengths) >= 0.985 * best, "{} {best}", rate(&lengths));
        }
    }
}
