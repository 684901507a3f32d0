//! A histogram of fixed buckets: what a distribution needs to be exported, added up and compared.
//!
//! ```text
//!  bounds      b0        b1        b2
//!  counts  [≤ b0]  (b0, b1]  (b1, b2]  (b2, ∞)
//! ```
//!
//! Observing is O(1) for a value like the one before, as the times of one step's rows are, O(log buckets) else, and
//! allocates nothing.

/// Most bounds that a histogram can have.
pub const MAX_BOUNDS: usize = 20;

/// Bounds for what a request waits, in nanoseconds: a millisecond to ten minutes.
pub const LATENCY_BOUNDS_NS: [u64; 18] = scaled(
    1_000_000,
    [
        1, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000,
        320_000, 640_000,
    ],
);

/// Bounds for the time between two tokens, in nanoseconds: finest where steps usually are.
pub const TOKEN_BOUNDS_NS: [u64; 18] = scaled(
    100_000,
    [1, 5, 10, 20, 50, 80, 100, 150, 200, 300, 500, 750, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000],
);

/// The values times their unit.
pub(super) const fn scaled<const N: usize>(unit: u64, mut values: [u64; N]) -> [u64; N] {
    let mut at = 0;
    while at < N {
        values[at] *= unit;
        at += 1;
    }
    values
}

/// Bounds for lengths, in tokens: powers of two.
pub const LENGTH_BOUNDS: [u64; 18] = {
    let mut bounds = [1; 18];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = 2 * bounds[at - 1];
        at += 1;
    }
    bounds
};

/// How often which values were seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: [u64; MAX_BOUNDS + 1],
    sum: u64,
    /// The bucket of the last value.
    last: usize,
}

impl Histogram {
    /// An empty histogram; `bounds` ascend, at most [`MAX_BOUNDS`] of them.
    pub fn new(bounds: &'static [u64]) -> Self {
        debug_assert!(bounds.len() <= MAX_BOUNDS && bounds.is_sorted());
        Self { bounds, counts: [0; MAX_BOUNDS + 1], sum: 0, last: 0 }
    }

    /// Counts one value.
    #[inline]
    pub fn observe(&mut self, value: u64) {
        if !self.is_in(self.last, value) {
            self.last = self.bounds.partition_point(|bound| *bound < value);
        }
        self.counts[self.last] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    fn is_in(&self, bucket: usize, value: u64) -> bool {
        let above = bucket.checked_sub(1).is_none_or(|below| self.bounds[below] < value);
        above && self.bounds.get(bucket).is_none_or(|bound| value <= *bound)
    }

    /// The upper bounds of all buckets but the last, which has none. A bound belongs to its bucket.
    pub fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    /// How many values fell into each bucket, not cumulated.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..=self.bounds.len()]
    }

    /// All values added up.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many values were seen.
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket(
            values in prop::collection::vec(0..700_000_000_000u64, 0..50),
            kind in 0..3usize,
        ) {
            let bounds: &'static [u64] = [&LATENCY_BOUNDS_NS[..], &TOKEN_BOUNDS_NS, &LENGTH_BOUNDS][kind];
            let mut histogram = Histogram::new(bounds);
            values.iter().for_each(|value| histogram.observe(*value));
            for (at, count) in histogram.counts().iter().enumerate() {
                let above = at.checked_sub(1).map(|below| bounds[below]);
                let upto = bounds.get(at).copied().unwrap_or(u64::MAX);
                let inside = |value: &&u64| above.is_none_or(|above| **value > above) && **value <= upto;
                prop_assert_eq!(*count, values.iter().filter(inside).count() as u64);
            }
            prop_assert_eq!(histogram.count(), values.len() as u64);
            prop_assert_eq!(histogram.sum(), values.iter().sum::<u64>());
        }
    }

    #[test]
    fn the_bounds_ascend_and_fit() {
        for bounds in [&LATENCY_BOUNDS_NS[..], &TOKEN_BOUNDS_NS, &LENGTH_BOUNDS] {
            assert!(bounds.len() <= MAX_BOUNDS);
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert_eq!(LENGTH_BOUNDS.last(), Some(&(1 << 17)));
    }
}
