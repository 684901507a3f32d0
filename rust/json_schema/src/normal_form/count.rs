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

    /// Of both, where no value is of both.
    pub fn plus(self, other: Count) -> Count {
        self.with(other, u64::saturating_add)
    }

    /// Of pairs.
    pub fn times(self, other: Count) -> Count {
        self.with(other, u64::saturating_mul)
    }

    /// Of both, where values may be of both.
    pub fn or(self, other: Count) -> Count {
        self.with(Count::AtLeast(other.least()), u64::max)
    }
}
