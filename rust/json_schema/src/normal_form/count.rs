//! Counts of values, for `contains` and `uniqueItems`.

/// How many values there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Count {
    Just(u64),
    AtLeast(u64),
    /// More than an array has room for.
    Many,
}

impl Count {
    pub fn least(self) -> u64 {
        match self {
            Count::Just(count) | Count::AtLeast(count) => count,
            Count::Many => u64::MAX,
        }
    }

    pub fn with(self, other: Count, join: fn(u64, u64) -> u64) -> Count {
        match (self, other) {
            (Count::Many, _) | (_, Count::Many) => Count::Many,
            (Count::Just(a), Count::Just(b)) => Count::Just(join(a, b)),
            (a, b) => Count::AtLeast(join(a.least(), b.least())),
        }
    }

    /// The count of two disjoint sets of values.
    pub fn plus(self, other: Count) -> Count {
        self.with(other, u64::saturating_add)
    }

    /// The count of pairs.
    pub fn times(self, other: Count) -> Count {
        self.with(other, u64::saturating_mul)
    }

    /// The count of two sets of values that may overlap.
    pub fn or(self, other: Count) -> Count {
        self.with(Count::AtLeast(other.least()), u64::max)
    }
}
