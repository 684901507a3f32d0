//! How many draft tokens each row of a step gets, so that the step yields the most tokens a second.
//!
//! ```text
//!  row 0   .9 .8 .7 .6        expected gains: the probability that this token and all before it are accepted
//!  row 1   .5 .2              taken in order of gain: .9 .8 .7 .6 .5 .2, while (rows + Σ gains) / time grows
//!  row 2   -
//! ```
//!
//! Gains fall along a row, so that the best tokens of the batch are a beginning of each row's draft. They are
//! sorted by counting in `BINS` bins: O(tokens + bins) for each number of iterations of the draft model.

/// Bins of gains; a token's gain counts as exactly what it is, only the order is as coarse as this.
const BINS: usize = 128;

/// How many sums are tried within one bin.
const TRIED: usize = 16;

fn bin(gain: f32) -> usize {
    ((gain * BINS as f32) as usize).min(BINS - 1)
}

/// How many draft tokens a row gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Length {
    /// The first so many of those that the host proposed.
    pub host: u16,
    /// So many more from the device's draft model.
    pub device: u16,
}

/// The drafts that a row may have.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// Where its gains begin: those of the host's tokens, then those of the device's.
    first: u32,
    host: u16,
    /// The device's tokens come after so many of the host's, instead of the others.
    forced: u16,
    device: u16,
    /// What the host's tokens after the forced ones gain together.
    rest: f32,
}

/// The drafts of all rows.
#[derive(Default)]
pub(super) struct Offers {
    offers: Vec<Offer>,
    gains: Vec<f32>,
    /// Of each gain of a device's token: the sum up to it.
    sums: Vec<f32>,
    iterations: usize,
}

impl Offers {
    pub fn clear(&mut self) {
        self.offers.clear();
        self.gains.clear();
        self.sums.clear();
        self.iterations = 0;
    }

    /// Adds a row: probabilities of the host's tokens, the first `forced` of which are forced, and of the tokens
    /// that the device would draft after those.
    pub fn push(
        &mut self,
        host: impl Iterator<Item = f32>,
        forced: usize,
        device: impl Iterator<Item = f32>,
    ) {
        let first = self.gains.len();
        let mut gain = 1.0;
        self.gains.extend(host.map(|probability| {
            gain *= probability;
            gain
        }));
        let host = self.gains.len() - first;
        let forced = forced.min(host);
        let mut gain = if forced > 0 { self.gains[first + forced - 1] } else { 1.0 };
        self.gains.extend(device.map(|probability| {
            gain *= probability;
            gain
        }));
        let device = self.gains.len() - first - host;
        let rest = self.gains[first + forced..first + host].iter().sum();
        let mut sum = 0.0;
        self.sums.resize(first + host, 0.0);
        self.sums.extend(self.gains[first + host..].iter().map(|gain| {
            sum += gain;
            sum
        }));
        self.iterations = self.iterations.max(device);
        let short = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        self.offers.push(Offer {
            first: first as u32,
            host: short(host),
            forced: short(forced),
            device: short(device),
            rest,
        });
    }

    pub fn rows(&self) -> usize {
        self.offers.len()
    }

    /// The most iterations that the draft model could be asked for.
    pub fn iterations(&self) -> usize {
        self.iterations
    }

    /// Whether a row takes its device's draft with so many iterations rather than its host's, and the gains in
    /// the order in which tokens would be sent.
    fn best(&self, offer: Offer, iterations: usize) -> (bool, impl Iterator<Item = f32> + '_) {
        let first = offer.first as usize;
        let (host, device) = (usize::from(offer.host), usize::from(offer.device).min(iterations));
        let forced = usize::from(offer.forced);
        let on_device = device > 0 && self.sums[first + host + device - 1] > offer.rest;
        let other =
            if on_device { first + host..first + host + device } else { first + forced..first + host };
        (on_device, self.gains[first..first + forced].iter().chain(&self.gains[other]).copied())
    }
}

/// What lengths were found.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Choice {
    /// Expected tokens per unit of time.
    pub rate: f32,
    /// Draft tokens in the step.
    pub tokens: usize,
    /// Iterations of the device's draft model.
    pub iterations: usize,
    /// The last bin that is taken, and how many of its tokens.
    last: (usize, usize),
}

/// Finds lengths; the bins are kept from one step to the next.
pub(super) struct Chooser {
    bins: Box<[(usize, f32); BINS]>,
}

impl Default for Chooser {
    fn default() -> Self {
        Self { bins: Box::new([(0, 0.0); BINS]) }
    }
}

impl Chooser {
    /// The best lengths with exactly `iterations` of the draft model and between `least` and `most` draft tokens;
    /// `time` tells how long a step with so many draft tokens takes.
    pub fn choose(
        &mut self,
        offers: &Offers,
        iterations: usize,
        least: usize,
        most: usize,
        time: impl Fn(usize) -> f32,
    ) -> Choice {
        self.bins.fill((0, 0.0));
        for &offer in &offers.offers {
            for gain in offers.best(offer, iterations).1 {
                let bin = &mut self.bins[bin(gain)];
                *bin = (bin.0 + 1, bin.1 + gain);
            }
        }
        let (mut tokens, mut expected) = (0, offers.rows() as f32);
        let mut choice = Choice { rate: expected / time(0), iterations, ..Choice::default() };
        if least > 0 {
            choice.rate = 0.0;
        }
        for (at, &(count, sum)) in self.bins.iter().enumerate().rev().filter(|(_, bin)| bin.0 > 0) {
            let stride = count.div_ceil(TRIED);
            let mut taken = 0;
            while taken < count {
                taken = (taken + stride).min(count);
                let total = tokens + taken;
                if total > most {
                    return choice;
                }
                let rate = (expected + sum * taken as f32 / count as f32) / time(total);
                if rate > choice.rate && total >= least {
                    choice = Choice { rate, tokens: total, iterations, last: (at, taken) };
                }
            }
            tokens += count;
            expected += sum;
        }
        choice
    }

    /// What the choice gives each row, in their order.
    pub fn assign(offers: &Offers, choice: &Choice, lengths: &mut Vec<Length>) {
        let (last, mut left) = choice.last;
        lengths.extend(offers.offers.iter().map(|&offer| {
            if choice.tokens == 0 {
                return Length::default();
            }
            let (on_device, gains) = offers.best(offer, choice.iterations);
            let taken = gains
                .take_while(|&gain| {
                    let at = bin(gain);
                    let take = at > last || (at == last && left > 0);
                    left -= usize::from(take && at == last);
                    take
                })
                .count() as u16;
            let host = if on_device { taken.min(offer.forced) } else { taken };
            Length { host, device: taken - host }
        }));
    }

    /// The host's tokens that are accepted with a probability of at least `gain`.
    pub fn likely(offers: &Offers, gain: f32, lengths: &mut Vec<Length>) {
        let choice = Choice { tokens: 1, last: (bin(gain), usize::MAX), ..Choice::default() };
        Self::assign(offers, &choice, lengths);
    }

    /// Everything that is offered, the device's draft only where the host has nothing but forced tokens.
    pub fn everything(offers: &Offers, lengths: &mut Vec<Length>) {
        lengths.extend(offers.offers.iter().map(|offer| Length {
            host: offer.host,
            device: if offer.host > offer.forced { 0 } else { offer.device },
        }));
    }
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

    fn lengths(offers: &Offers, iterations: usize, time: impl Fn(usize) -> f32) -> (Choice, Vec<Length>) {
        let choice = Chooser::default().choose(offers, iterations, 0, usize::MAX, time);
        let mut lengths = vec![];
        Chooser::assign(offers, &choice, &mut lengths);
        (choice, lengths)
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
        let (choice, found) = lengths(&offers, 2, |_| 1.0);
        assert_eq!(found, [Length { host: 1, device: 2 }, host(2)]);
        assert_eq!((choice.tokens, choice.iterations), (5, 2));
        assert_eq!(lengths(&offers, 0, |_| 1.0).1, [host(2), host(2)]);
        let mut all = vec![];
        Chooser::everything(&offers, &mut all);
        assert_eq!(all, [host(2), host(2)]);
    }

    #[test]
    fn no_more_than_is_allowed() {
        let offers = offers(&[(&[0.9; 8], 0, &[]), (&[0.8; 8], 0, &[])]);
        let choice = Chooser::default().choose(&offers, 0, 0, 3, |_| 1.0);
        assert_eq!(choice.tokens, 3);
        let choice = Chooser::default().choose(&offers, 0, 1, 16, |n| 1.0 + n as f32);
        assert_eq!(choice.tokens, 1, "at least one, although none would be better");
    }

    proptest! {
        /// What is assigned is what was chosen, and no better choice among beginnings of the sorted gains exists.
        #[test]
        fn as_good_as_trying_all(rows in prop::collection::vec(prop::collection::vec(0.0f32..1.0, 0..6), 1..6),
                                 slope in 0.0f32..0.5) {
            let mut offers = Offers::default();
            rows.iter().for_each(|row| offers.push(row.iter().copied(), 0, std::iter::empty()));
            let time = |n: usize| 1.0 + slope * n as f32;
            let (choice, found) = lengths(&offers, 0, time);
            let assigned: usize = found.iter().map(|length| usize::from(length.host)).sum();
            prop_assert_eq!(assigned, choice.tokens);
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
                let lengths: Vec<_> = offers.offers.iter().map(|offer| {
                    let row = &offers.gains[offer.first as usize..][..usize::from(offer.host)];
                    row.iter().take_while(|&&gain| gain >= least).count()
                }).collect();
                best = best.max(rate(&lengths));
            }
            let lengths: Vec<_> = found.iter().map(|length| usize::from(length.host)).collect();
            prop_assert!(rate(&lengths) >= 0.985 * best, "{} {best}", rate(&lengths));
        }
    }
}
