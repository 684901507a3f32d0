//! A draft: tokens that may come next, and who proposed which of them.
//!
//! ```text
//!  known tokens │ forced forced │ n-gram n-gram n-gram │
//!               └─ segment 0 ───┴─ segment 1 ──────────┘     at most PARTS segments, in order
//! ```
//!
//! [`Segments`] is a small value that is copied with its row: O(1) in space, no allocation.

/// Who proposed a draft; the order is that of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Source {
    /// The grammar allows nothing else.
    Forced,
    /// The output that the client predicts.
    Prediction,
    /// What followed the same few tokens earlier in the request.
    Ngram,
    /// What followed the longest known suffix, in the request or in recent outputs of its tenant.
    Suffix,
    /// A smaller model on the device.
    DraftModel,
}

/// How many sources there are.
pub const SOURCES: usize = Source::ALL.len();

impl Source {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Forced, Self::Prediction, Self::Ngram, Self::Suffix, Self::DraftModel];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Prediction => "prediction",
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::DraftModel => "draft_model",
        }
    }
}

/// How good the evidence for a draft is: each source has its own few classes, worst first, whose acceptance is
/// measured apart.
pub(super) type Class = u8;

/// Most classes of a source.
pub(super) const CLASSES: usize = 10;

/// Draft tokens in a row from one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Who proposed them.
    pub source: Source,
    /// How many.
    pub count: u16,
    pub(super) class: Class,
}

/// Most segments of a draft: forced tokens, tokens of a host's source, tokens of the device's draft model.
const PARTS: usize = 3;

/// Who proposed which tokens of a draft.
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

/// What a proposer reads: the tokens of the sequence and those that are taken for granted after them.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    /// All tokens of the sequence so far.
    pub tokens: &'a [u32],
    /// Forced tokens, after which the proposer goes on.
    pub ahead: &'a [u32],
}

impl Text<'_> {
    pub fn len(&self) -> usize {
        self.tokens.len() + self.ahead.len()
    }

    pub fn get(&self, at: usize) -> u32 {
        if at < self.tokens.len() { self.tokens[at] } else { self.ahead[at - self.tokens.len()] }
    }

    /// How many tokens before `end` are those at the end of the text, up to `most`.
    pub fn common_suffix(&self, end: usize, most: usize) -> usize {
        let length = self.len();
        (0..most.min(end).min(length))
            .take_while(|&back| self.get(end - 1 - back) == self.get(length - 1 - back))
            .count()
    }
}

/// A source of drafts on the host.
pub(super) trait Proposer {
    /// Whose name the draft bears.
    const SOURCE: Source;

    /// Appends at most `limit` tokens that may follow `text` to `draft`, and says how good the evidence is.
    fn propose(&self, text: Text<'_>, limit: usize, draft: &mut Vec<u32>) -> Class;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_accepted_is_told_by_source() {
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
        segments.push(Source::Suffix, 1, 3);
        segments.truncate(3);
        assert_eq!(segments.split(9).collect::<Vec<_>>(), [(Source::Forced, 2, 2), (Source::Suffix, 1, 1)]);
        segments.truncate(2);
        assert_eq!(segments.iter().count(), 1);
        segments.truncate(0);
        assert_eq!((segments.total(), segments.iter().count()), (0, 0));
    }

    #[test]
    fn each_token_knows_its_place() {
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, 1);
        segments.push(Source::Suffix, 1, 2);
        let places: Vec<_> = segments.positions().map(|(segment, at)| (segment.source, at)).collect();
        assert_eq!(places, [(Source::Forced, 0), (Source::Suffix, 0), (Source::Suffix, 1)]);
    }
}
