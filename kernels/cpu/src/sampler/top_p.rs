//! Top-p, or nucleus: the fewest tokens that reach a probability (Holtzman et al., 2020).
//!
//! Probabilities are added up as integers ([`Scale::mass`]), so that a sum does not depend on its order.
//! Only as many tokens are sorted as it takes: the few most likely ones, or those of the bin of a
//! histogram in which the probability is reached. O(n + m log m) when m tokens are sorted.

use super::order::{Candidate, GROUP, Row};
use super::temperature::Scale;
use crate::multiversion;

/// Tokens that are sorted at first: at least, and at most.
const FIRST_LOOK: (usize, usize) = (48, 256);

/// Bins of the histogram; they cover the weights that have a mass, which are more than e^-22.
const BINS: usize = 2048;
const BINS_PER_NAT: f32 = BINS as f32 / 22.0;
const LAST_BIN: f32 = (BINS - 1) as f32;

/// Keeps the fewest tokens, first in order, whose probabilities among those kept so far reach `p`; at
/// least one. 1 or more keeps all of them; NaN too.
pub fn keep(row: &mut Row, p: f32, scale: Scale) {
    if p.is_nan() || p >= 1.0 {
        return;
    }
    let mass = |candidate: &Candidate| u64::from(scale.mass(candidate.logit()));
    let total = row.kept().map(|kept| kept.iter().map(mass).sum());
    let wanted = (f64::from(p) * total.unwrap_or_else(|| total_mass(row, scale)) as f64).ceil() as u64;
    let first = match row.kept() {
        Some(kept) => kept,
        None => row.list_first(FIRST_LOOK.0, FIRST_LOOK.1),
    };
    let mut reached = 0;
    let mut reaches = |candidate: &Candidate| {
        reached += mass(candidate);
        reached >= wanted
    };
    if let Some(last) = first.iter().position(&mut reaches) {
        return row.keep_listed(last + 1);
    }
    let bins = histogram(row, scale);
    reached = 0;
    let at = bins.iter().position(|mass| {
        reached += mass;
        reached >= wanted
    });
    let at = at.expect("the bins have the mass of all, and no more is wanted");
    reached -= bins[at];
    let listed = row.list_sorted(|logit| bin(scale, logit) == at as i32);
    let last = listed.iter().copied().find(|candidate| {
        reached += mass(candidate);
        reached >= wanted
    });
    row.keep_until(last.expect("the tokens of a bin have its mass"));
}

/// Whether any token of a group may have a mass. Weights fall with logits but for roundings, which are far
/// less than what lies between e^-22 and half a unit of mass.
#[inline(always)]
fn may_have_mass(peak: f32, scale: Scale) -> bool {
    scale.exponent(peak) > -22.0
}

#[inline(always)]
fn total_body<const FMA: bool>(row: &Row, scale: Scale) -> u64 {
    let mut total = 0;
    for (group, _) in row.peaks().iter().enumerate().filter(|&(_, &peak)| may_have_mass(peak, scale)) {
        total += row.group(group).iter().map(|&logit| u64::from(scale.mass(logit))).sum::<u64>();
    }
    total
}

multiversion!(
    /// The mass of all tokens. O(vocabulary).
    fn total_mass(row: &Row, scale: Scale) -> u64 = total_body
);

/// The bin of a logit. A larger logit is in the same or an earlier one, for every operation on the way is
/// monotonic. NaN, of minus infinity at an infinite temperature, has no mass wherever it is.
#[inline(always)]
fn bin(scale: Scale, logit: f32) -> i32 {
    let bin = -scale.exponent(logit) * BINS_PER_NAT;
    let inside = if bin < LAST_BIN { bin } else { LAST_BIN };
    // SAFETY: between 0 and the last bin, for the best logit is no less than this one.
    unsafe { inside.to_int_unchecked() }
}

#[inline(always)]
fn histogram_body<const FMA: bool>(row: &Row, scale: Scale) -> Vec<u64> {
    let mut masses = vec![0; BINS];
    for (group, _) in row.peaks().iter().enumerate().filter(|&(_, &peak)| may_have_mass(peak, scale)) {
        let logits = row.group(group);
        let (mut bins, mut each) = ([0; GROUP], [0; GROUP]);
        for at in 0..GROUP {
            bins[at] = bin(scale, logits[at]);
            each[at] = scale.mass(logits[at]);
        }
        for at in 0..GROUP {
            masses[bins[at] as usize % BINS] += u64::from(each[at]);
        }
    }
    masses
}

multiversion!(
    /// The mass of each bin. O(vocabulary).
    fn histogram(row: &Row, scale: Scale) -> Vec<u64> = histogram_body
);
