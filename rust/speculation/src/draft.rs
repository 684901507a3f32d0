//! A draft: tokens that may come next, in segments by their source.
//!
//! ```text
//!  known tokens │ forced forced │ n-gram n-gram n-gram │
//!               └─ segment 0 ───┴─ segment 1 ──────────┘     at most PARTS segments, in order
//! ```
//!
//! [`Segments`] is a small value that is copied with its row: O(1) in space, no allocation.

use super::source::{Class, Source};

/// Draft tokens in a row from one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where they come from.
    pub source: Source,
    /// How many.
    pub count: u16,
    pub(super) class: Class,
}

/// Most segments of a draft: forced tokens, tokens of a host's source, tokens of the device's draft model.
const PARTS: usize = 3;

/// The sources of a draft's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    parts: [Segment; PARTS],
    used: u8,
}

impl Default for Segments {
    fn default() -> Self {
        Self { parts: [Segment { source: Source::Forced, count: 0, class: 0 }; PARTS], used: 0 }
    }
}

impl Segments {
    /// Adds `count` tokens of a source at the end; none is no segment.
    ///
    /// # Panics
    /// If there are too many segments.
    pub(super) fn push(&mut self, source: Source, class: Class, count: usize) {
        if count > 0 {
            let count = u16::try_from(count).unwrap_or(u16::MAX);
            self.parts[usize::from(self.used)] = Segment { source, count, class };
            self.used += 1;
        }
    }

    /// Adds `count` tokens that the device's draft model drafts after those of the host.
    ///
    /// # Panics
    /// If they were added before.
    pub fn push_device(&mut self, count: usize) {
        self.push(Source::DraftModel, 0, count);
    }

    /// The segments, in order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> + '_ {
        self.parts[..usize::from(self.used)].iter().copied()
    }

    /// How many tokens they have together.
    pub fn total(&self) -> usize {
        self.iter().map(|segment| usize::from(segment.count)).sum()
    }

    /// How many tokens a grammar forces: they come first.
    pub fn forced(&self) -> usize {
        self.iter().take_while(|s| s.source == Source::Forced).map(|s| usize::from(s.count)).sum()
    }

    /// Keeps only the first `count` tokens.
    pub fn truncate(&mut self, count: usize) {
        let (mut left, mut used) = (count, 0);
        for segment in &mut self.parts[..usize::from(self.used)] {
            segment.count = usize::from(segment.count).min(left) as u16;
            left -= usize::from(segment.count);
            used += u8::from(segment.count > 0);
        }
        self.used = used;
    }

    /// Each source with how many tokens it proposed and how many of them are among the first `accepted`.
    pub fn split(&self, accepted: usize) -> impl Iterator<Item = (Source, usize, usize)> + '_ {
        let mut left = accepted;
        self.iter().map(move |segment| {
            let count = usize::from(segment.count);
            let taken = count.min(left);
            left -= taken;
            (segment.source, count, taken)
        })
    }

    /// The segment of each token, and the token's position in it.
    pub(super) fn positions(&self) -> impl Iterator<Item = (Segment, usize)> + '_ {
        self.iter().flat_map(|segment| (0..usize::from(segment.count)).map(move |at| (segment, at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_tokens_are_split_by_source() {
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, 2);
        segments.push(Source::Ngram, 3, 0);
        segments.push(Source::Ngram, 3, 4);
        segments.push_device(1);
        assert_eq!((segments.total(), segments.forced()), (7, 2));
        let split: Vec<_> = segments.split(4).collect();
        assert_eq!(split, [(Source::Forced, 2, 2), (Source::Ngram, 4, 2), (Source::DraftModel, 1, 0)]);
    }

    #[test]
    fn the_end_is_cut_off() {
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, 2);
        segments.push(Source::Ngram, 1, 3);
        segments.truncate(3);
        assert_eq!(segments.split(9).collect::<Vec<_>>(), [(Source::Forced, 2, 2), (Source::Ngram, 1, 1)]);
        segments.truncate(2);
        assert_eq!(segments.iter().count(), 1);
        segments.truncate(0);
        assert_eq!((segments.total(), segments.iter().count()), (0, 0));
    }

    #[test]
    fn each_token_has_a_segment_and_a_position() {
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, 1);
        segments.push(Source::Ngram, 1, 2);
        let places: Vec<_> = segments.positions().map(|(segment, at)| (segment.source, at)).collect();
        assert_eq!(places, [(Source::Forced, 0), (Source::Ngram, 0), (Source::Ngram, 1)]);
    }
}
