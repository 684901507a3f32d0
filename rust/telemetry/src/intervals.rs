//! When something was the case: disjoint intervals in order, the latest of them.
//!
//! Appending is O(1), measuring O(log intervals + intervals within).

use std::collections::VecDeque;

/// The latest `limit` intervals.
#[derive(Debug)]
pub(super) struct Intervals {
    limit: usize,
    parts: VecDeque<(u64, u64)>,
}

impl Intervals {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, parts: VecDeque::new() }
    }

    /// Appends `start..end`, less what lies before the end of the last one, which is there already.
    pub(super) fn push(&mut self, start: u64, end: u64) {
        let start = start.max(self.end());
        if start >= end {
            return;
        }
        if self.parts.len() == self.limit {
            self.parts.pop_front();
        }
        self.parts.push_back((start, end));
    }

    /// Where the last one ends; 0 before the first.
    pub(super) fn end(&self) -> u64 {
        self.parts.back().map_or(0, |last| last.1)
    }

    /// How much of `start..end` they cover.
    pub(super) fn covered(&self, start: u64, end: u64) -> u64 {
        let first = self.parts.partition_point(|part| part.1 <= start);
        let parts = self.parts.range(first..).take_while(|part| part.0 < end);
        parts.map(|part| part.1.min(end) - part.0.max(start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_counting_each_nanosecond(
            pieces in prop::collection::vec((0u64..12, 0u64..12), 0..12),
            start in 0u64..150,
            length in 0u64..60,
        ) {
            let (mut intervals, mut cells, mut at) = (Intervals::new(100), [false; 400], 0);
            for (gap, length) in pieces {
                intervals.push(at + gap, at + gap + length);
                cells[(at + gap) as usize..(at + gap + length) as usize].fill(true);
                at += gap + length;
            }
            let wanted = cells[start as usize..(start + length) as usize].iter().filter(|cell| **cell);
            prop_assert_eq!(intervals.covered(start, start + length), wanted.count() as u64);
        }
    }

    #[test]
    fn overlaps_count_once_and_the_oldest_are_forgotten() {
        let mut intervals = Intervals::new(2);
        for (start, end) in [(0, 10), (5, 20), (8, 15), (30, 40)] {
            intervals.push(start, end);
        }
        assert_eq!((intervals.covered(0, 100), intervals.end()), (20, 40));
    }
}
