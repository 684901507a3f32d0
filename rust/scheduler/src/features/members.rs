//! Which requests have which features: sets of features by request, and how many requests have each. O(features).

use crate::step::sequence_table::RequestId;

/// Features that there can be.
const MOST: usize = 32;

/// A set of features, by their places in the list of all. As an iterator it gives the places, ascending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Members(u32);

impl Members {
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }

    /// The features of either set.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Iterator for Members {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let at = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (at < u32::BITS).then_some(at as usize)
    }
}

/// The sets of all requests.
#[derive(Default)]
pub(super) struct Membership {
    by_request: Vec<Members>,
    counts: [u32; MOST],
    present: Members,
}

impl Membership {
    /// The features of a request.
    #[inline]
    pub fn of(&self, id: RequestId) -> Members {
        self.by_request.get(id as usize).copied().unwrap_or_default()
    }

    /// The features that some request has.
    pub fn present(&self) -> Members {
        self.present
    }

    /// A request has the feature at this place, which it had not before.
    pub fn enter(&mut self, id: RequestId, at: usize) {
        if self.by_request.len() <= id as usize {
            self.by_request.resize(id as usize + 1, Members::default());
        }
        debug_assert!(!self.of(id).has(at));
        self.by_request[id as usize].0 |= 1 << at;
        self.counts[at] += 1;
        self.present.0 |= 1 << at;
    }

    /// A request has no features any more; returns those that it had.
    pub fn leave(&mut self, id: RequestId) -> Members {
        let had = self.by_request.get_mut(id as usize).map(std::mem::take).unwrap_or_default();
        for at in had {
            self.counts[at] -= 1;
            if self.counts[at] == 0 {
                self.present.0 &= !(1 << at);
            }
        }
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_present_while_a_request_has_it() {
        let mut members = Membership::default();
        assert!(members.of(3).is_empty() && members.present().is_empty());
        members.enter(3, 2);
        members.enter(3, 0);
        members.enter(1, 2);
        assert_eq!(members.of(3).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(members.present().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(members.leave(3).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(members.leave(3), Members::default());
        assert_eq!((members.present(), members.of(1).has(2)), (members.of(1), true));
        members.enter(9, 31);
        assert_eq!(members.present().or(Members(1)).collect::<Vec<_>>(), [0, 2, 31]);
    }
}
