//! The candidates of one row in order: the larger logit first, the lower id first of equals.
//!
//! ```text
//! tokens   0 ......31 | 32 .....63 | 64 .....95 | ...      groups: a word of a mask each
//! peaks       4.5     |    7.25    |   -inf     |          the largest logit of each
//! ```
//!
//! The n-th largest peak is a bound that at least n tokens reach, so that the first n are found by looking
//! into few groups. Loading is O(vocabulary), finding the first n O(vocabulary / 32 + n log n) where large
//! logits are not crowded into few groups, and O(vocabulary + n log n) at worst.

use super::mask::in_vocabulary;
use crate::element::Element;
use crate::multiversion;
use crate::random::{BLOCK, LANES};

/// Tokens of a group.
pub const GROUP: usize = LANES;

/// A token by its place in the order: the smaller number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate(u64);

impl Candidate {
    /// A token with its logit.
    #[inline]
    pub fn new(logit: f32, token: u32) -> Self {
        let bits = logit.to_bits();
        // Ascending as a number where the float descends.
        let descending = if bits >> 31 == 0 { !bits & 0x7fff_ffff } else { bits };
        Self(u64::from(descending) << 32 | u64::from(token))
    }

    /// Its logit.
    #[inline]
    pub fn logit(self) -> f32 {
        let descending = (self.0 >> 32) as u32;
        f32::from_bits(if descending >> 31 == 0 { !descending & 0x7fff_ffff } else { descending })
    }

    /// Its id.
    #[inline]
    pub fn token(self) -> u32 {
        self.0 as u32
    }
}

/// The first of the order up to a last one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    logit: f32,
    token: u32,
}

impl Cut {
    /// Keeps all.
    pub const ALL: Self = Self { logit: f32::NEG_INFINITY, token: u32::MAX };

    /// Keeps those up to `last`.
    pub fn after(last: Candidate) -> Self {
        Self { logit: last.logit(), token: last.token() }
    }

    /// Whether a token is kept.
    #[inline(always)]
    pub fn keeps(self, logit: f32, token: u32) -> bool {
        (logit > self.logit) | ((logit == self.logit) & (token <= self.token))
    }

    /// Whether one of a group or block with this peak may be kept.
    #[inline(always)]
    pub fn reaches(self, peak: f32) -> bool {
        peak >= self.logit
    }
}

/// The row that is worked on: its logits in f32, and what the rules have kept of it so far.
#[derive(Debug)]
pub struct Row {
    /// NaN and what is not allowed are minus infinity, and so is what fills the last block up; no -0.
    logits: Vec<f32>,
    peaks: Vec<f32>,
    vocabulary: usize,
    best: f32,
    cut: Cut,
    /// The first of the order, sorted.
    listed: Vec<Candidate>,
    /// Whether those are all that the cut keeps.
    complete: bool,
    bounds: Vec<f32>,
}

impl Row {
    /// No row yet.
    pub const fn new() -> Self {
        Self {
            logits: Vec::new(),
            peaks: Vec::new(),
            vocabulary: 0,
            best: f32::NEG_INFINITY,
            cut: Cut::ALL,
            listed: Vec::new(),
            complete: false,
            bounds: Vec::new(),
        }
    }

    /// Begins with all tokens that `mask` allows.
    pub fn load<T: Element>(&mut self, logits: &[T], mask: Option<&[u32]>) {
        let padded = logits.len().next_multiple_of(BLOCK);
        self.vocabulary = logits.len();
        self.logits.resize(padded, 0.0);
        self.peaks.resize(padded / GROUP, 0.0);
        copy_allowed(logits, mask, &mut self.logits, &mut self.peaks);
        let (blocks, _) = self.peaks.as_chunks::<{ BLOCK / GROUP }>();
        self.best = blocks.iter().map(largest).fold(f32::NEG_INFINITY, f32::max);
        self.cut = Cut::ALL;
        self.complete = false;
    }

    /// Another logit for each; the order of those that differ afterwards must stay.
    pub fn replace(&mut self, by: impl Fn(f32) -> f32) {
        for value in self.logits.iter_mut().chain(&mut self.peaks).chain([&mut self.best]) {
            *value = by(*value);
        }
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The largest logit.
    pub fn best(&self) -> f32 {
        self.best
    }

    /// The logits, filled up with minus infinity to whole blocks.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The largest logit of each group.
    pub fn peaks(&self) -> &[f32] {
        &self.peaks
    }

    /// The logits of a group.
    #[inline(always)]
    pub fn group(&self, group: usize) -> &[f32; GROUP] {
        self.logits[group * GROUP..].first_chunk().expect("whole groups")
    }

    /// The candidates that are kept.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// All that is kept, sorted, if it has been sorted.
    pub fn kept(&self) -> Option<&[Candidate]> {
        self.complete.then_some(&self.listed)
    }

    /// Keeps the first `count`, or all that are possible if those are fewer.
    pub fn keep_first(&mut self, count: usize) {
        self.list_first(count, count);
        self.keep_listed(self.listed.len());
    }

    /// Keeps the first `count` of those listed.
    ///
    /// # Panics
    /// Fewer are listed, or 0.
    pub fn keep_listed(&mut self, count: usize) {
        self.keep_until(self.listed[count - 1]);
        self.listed.truncate(count);
        self.complete = true;
    }

    /// Keeps those up to `last`, without a list of them.
    pub fn keep_until(&mut self, last: Candidate) {
        self.cut = Cut::after(last);
        self.complete = false;
    }

    /// Lists the first `least` to `most`, or all that are possible if those are fewer; sorted.
    pub fn list_first(&mut self, least: usize, most: usize) -> &[Candidate] {
        let mut bound = f32::NEG_INFINITY;
        if least < self.peaks.len() {
            self.bounds.clear();
            self.bounds.extend_from_slice(&self.peaks);
            bound = *self.bounds.select_nth_unstable_by(least - 1, |a, b| b.total_cmp(a)).1;
        }
        self.list_where(bound, |_| true);
        if self.listed.len() > most {
            self.listed.select_nth_unstable(most - 1);
            self.listed.truncate(most);
        }
        self.listed.sort_unstable();
        &self.listed
    }

    /// Lists, sorted, those that `wanted` says.
    pub fn list_sorted(&mut self, wanted: impl Fn(f32) -> bool) -> &[Candidate] {
        self.list_where(f32::NEG_INFINITY, wanted);
        self.listed.sort_unstable();
        &self.listed
    }

    /// Lists those of at least `bound` that `wanted` says.
    fn list_where(&mut self, bound: f32, wanted: impl Fn(f32) -> bool) {
        self.listed.clear();
        self.complete = false;
        let wanted = |logit: f32| (logit >= bound) & (logit > f32::NEG_INFINITY) & wanted(logit);
        for (group, logits) in self.logits.chunks_exact(GROUP).enumerate() {
            // In vectors first: most groups have none.
            if self.peaks[group] < bound || !logits.iter().fold(false, |any, &logit| any | wanted(logit)) {
                continue;
            }
            for (at, &logit) in logits.iter().enumerate() {
                if wanted(logit) {
                    self.listed.push(Candidate::new(logit, (group * GROUP + at) as u32));
                }
            }
        }
    }
}

impl Default for Row {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn copy_allowed_body<T: Element, const FMA: bool>(
    from: &[T],
    mask: Option<&[u32]>,
    to: &mut [f32],
    peaks: &mut [f32],
) {
    let (to, _) = to.as_chunks_mut::<GROUP>();
    let (whole, rest) = from.as_chunks::<GROUP>();
    let word = |group: usize| mask.map_or(u32::MAX, |words| words[group]);
    for (group, from) in whole.iter().enumerate() {
        peaks[group] = copy_group(from, word(group), &mut to[group]);
    }
    let mut group = whole.len();
    if !rest.is_empty() {
        let mut last = [T::ZERO; GROUP];
        last[..rest.len()].copy_from_slice(rest);
        let bits = word(group) & in_vocabulary(group, from.len());
        peaks[group] = copy_group(&last, bits, &mut to[group]);
        group += 1;
    }
    to[group..].as_flattened_mut().fill(f32::NEG_INFINITY);
    peaks[group..].fill(f32::NEG_INFINITY);
}

#[inline(always)]
fn copy_group<T: Element>(from: &[T; GROUP], bits: u32, to: &mut [f32; GROUP]) -> f32 {
    // Not a NaN; and -0 + 0 is 0. `usable` is inlined into loops of its own for either case.
    let usable = |logit: f32| if logit >= f32::NEG_INFINITY { logit + 0.0 } else { f32::NEG_INFINITY };
    if bits == u32::MAX {
        for (to, from) in to.iter_mut().zip(from) {
            *to = usable(from.to_f32());
        }
    } else {
        for at in 0..GROUP {
            let logit = usable(from[at].to_f32());
            to[at] = if bits >> at & 1 != 0 { logit } else { f32::NEG_INFINITY };
        }
    }
    largest(to)
}

/// The largest of a power of two of numbers, none of them a NaN.
#[inline(always)]
pub fn largest<const N: usize>(of: &[f32; N]) -> f32 {
    let mut lanes = *of;
    let mut width = N;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] = if other > lanes[lane] { other } else { lanes[lane] };
        }
    }
    lanes[0]
}

multiversion!(
    /// Logits in f32, minus infinity where there is none, it is a NaN or `mask` does not allow it; and
    /// the largest of each group.
    fn copy_allowed<T: Element>(from: &[T], mask: Option<&[u32]>, to: &mut [f32], peaks: &mut [f32])
        = copy_allowed_body
);

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use proptest::prelude::*;

    #[test]
    fn a_candidate_gives_its_logit_back() {
        for logit in [0.0, 1.5, -1.5, f32::INFINITY, -3e38, 1e-45] {
            let candidate = Candidate::new(logit, 77);
            assert_eq!((candidate.logit(), candidate.token()), (logit, 77));
        }
        assert!(Candidate::new(1.0, 9) < Candidate::new(0.5, 1));
        assert!(Candidate::new(-1.0, 9) < Candidate::new(-1.5, 1));
        assert!(Candidate::new(1.0, 1) < Candidate::new(1.0, 2));
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => (-6i32..6).prop_map(|n| n as f32 / 4.0),
            4 => -30.0f32..30.0,
            1 => Just(f32::NAN),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0f32),
        ]
    }

    proptest! {
        #[test]
        fn the_first_are_those_of_a_full_sort(
            logits in prop::collection::vec(logit(), 1..500),
            words in prop::option::of(prop::collection::vec(any::<u32>(), 16)),
            count in 1usize..60,
        ) {
            let mut row = Row::new();
            row.load(&logits, words.as_deref());
            let mut sorted: Vec<(f32, u32)> = (0..logits.len() as u32)
                .map(|t| (logits[t as usize] + 0.0, t))
                .filter(|&(l, t)| l > f32::NEG_INFINITY
                    && words.as_ref().is_none_or(|w| w[t as usize / 32] >> (t % 32) & 1 == 1))
                .collect();
            sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            prop_assert_eq!(row.best(), sorted.first().map_or(f32::NEG_INFINITY, |first| first.0));
            if sorted.is_empty() {
                return Ok(());
            }
            let pairs = |listed: &[Candidate]| -> Vec<_> {
                listed.iter().map(|c| (c.logit(), c.token())).collect()
            };
            let listed = pairs(row.list_first(count, 2 * count));
            prop_assert!(listed.len() >= count.min(sorted.len()) && listed.len() <= 2 * count);
            prop_assert_eq!(&listed[..], &sorted[..listed.len()]);
            row.keep_first(count);
            let first = &sorted[..count.min(sorted.len())];
            prop_assert_eq!(&pairs(row.kept().unwrap())[..], first);
            let cut = row.cut();
            for (at, &(logit, token)) in sorted.iter().enumerate() {
                prop_assert_eq!(cut.keeps(logit, token), at < first.len());
            }
        }

        #[test]
        fn bf16_is_loaded_as_its_f32(logits in prop::collection::vec(logit(), 1..300)) {
            let narrow: Vec<bf16> = logits.iter().map(|&l| bf16::from_f32(l)).collect();
            let wide: Vec<f32> = narrow.iter().map(|l| l.to_f32()).collect();
            let (mut a, mut b) = (Row::new(), Row::new());
            a.load(&narrow, None);
            b.load(&wide, None);
            prop_assert_eq!(a.logits(), b.logits());
            prop_assert_eq!(a.peaks(), b.peaks());
        }
    }
}
