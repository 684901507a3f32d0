//! Grammar masks: bit `t % 32` of word `t / 32` allows token `t`. O(words).

/// How many tokens a mask allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// None.
    None,
    /// This one alone: there is nothing to choose.
    One(u32),
    /// More than one.
    Several,
}

/// How many of the first `vocabulary` tokens `words` allows; later bits are not looked at.
///
/// # Panics
/// There are fewer bits than tokens.
pub fn allowed(words: &[u32], vocabulary: usize) -> Allowed {
    let mut found = Allowed::None;
    for (at, word) in words[..vocabulary.div_ceil(32)].iter().enumerate() {
        let word = word & in_vocabulary(at, vocabulary);
        if word == 0 {
            continue;
        }
        if found != Allowed::None || !word.is_power_of_two() {
            return Allowed::Several;
        }
        found = Allowed::One(at as u32 * 32 + word.trailing_zeros());
    }
    found
}

/// The bits of word `at` that stand for tokens.
#[inline(always)]
pub fn in_vocabulary(at: usize, vocabulary: usize) -> u32 {
    match vocabulary.saturating_sub(at * 32) {
        0 => 0,
        left @ 1..32 => (1 << left) - 1,
        _ => u32::MAX,
    }
}

/// A mask whose tokens are counted, to pick from it many times.
pub struct Counted<'a> {
    words: &'a [u32],
    /// How many tokens there are up to the end of each block.
    ends: Vec<u32>,
}

impl<'a> Counted<'a> {
    /// Words of a block.
    const BLOCK: usize = 32;

    /// Counts; every bit does.
    pub fn new(words: &'a [u32]) -> Self {
        let mut count = 0;
        let block = |block: &[u32]| {
            count += block.iter().map(|word| word.count_ones()).sum::<u32>();
            count
        };
        Self { words, ends: words.chunks(Self::BLOCK).map(block).collect() }
    }

    /// The `hash % n`-th of the n tokens that it allows; none where n is 0.
    pub fn pick(&self, hash: u64) -> Option<u32> {
        let nth = hash.checked_rem(u64::from(*self.ends.last()?))? as u32;
        let block = self.ends.partition_point(|end| *end <= nth);
        let mut left = nth - block.checked_sub(1).map_or(0, |before| self.ends[before]);
        for (at, word) in self.words.iter().enumerate().skip(block * Self::BLOCK) {
            if left >= word.count_ones() {
                left -= word.count_ones();
                continue;
            }
            let mut rest = *word;
            for _ in 0..left {
                rest &= rest - 1;
            }
            return Some(at as u32 * 32 + rest.trailing_zeros());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_beyond_the_vocabulary_do_not_count() {
        assert_eq!(allowed(&[0, 0], 40), Allowed::None);
        assert_eq!(allowed(&[0, 1 << 7], 40), Allowed::One(39));
        assert_eq!(allowed(&[0, 1 << 8], 40), Allowed::None);
        assert_eq!(allowed(&[1 << 31, !0 << 8], 40), Allowed::One(31));
        assert_eq!(allowed(&[1 << 31, 1], 40), Allowed::Several);
        assert_eq!(allowed(&[3, 0], 64), Allowed::Several);
    }

    proptest! {
        #[test]
        fn pick_is_the_nth_set_bit(words in prop::collection::vec(prop_oneof![Just(0), any::<u32>()], 0..80), hash: u64) {
            let set: Vec<u32> = (0..words.len() as u32 * 32)
                .filter(|&bit| words[bit as usize / 32] >> (bit % 32) & 1 == 1)
                .collect();
            let expected = (!set.is_empty()).then(|| set[(hash % set.len() as u64) as usize]);
            prop_assert_eq!(Counted::new(&words).pick(hash), expected);
        }
    }
}
