//! DRY, "don't repeat yourself": what would repeat a sequence of tokens is penalized, the more the longer the sequence
//! is (P. E. Weidmann, 2024).
//!
//! ```text
//!   x  a b c  d   ...   y  a b c  ?         d repeats 3 tokens: multiplier * base^(3 - allowed length)
//!      └─ before        └─ the last tokens
//! ```
//!
//! A function of the tokens before a logits row alone. Breakers are tokens at which a sequence ends: none is part of one, and
//! none is penalized. Of equal sequences the longest counts, and it grows to [`MAX_GROWTH`] tokens beyond the allowed
//! length at most.
//!
//! O(1) a token; finding costs O(tokens that are searched + places of the last one * their length).

use pyengine_kernels_cpu::sampler::SamplingRow;
use rustc_hash::{FxHashMap, FxHashSet};

/// A penalty grows over this many tokens: more would be beyond all logits.
const MAX_GROWTH: usize = 50;

/// The rule of one request.
#[derive(Debug)]
pub struct Dry {
    multiplier: f32,
    base: f32,
    allowed: usize,
    /// How many of the last tokens are searched.
    window: usize,
    breakers: FxHashSet<u32>,
    /// What came behind each token so far, and the most that came behind one: a bound of what is penalized.
    followers: FxHashMap<u32, FxHashSet<u32>>,
    most: usize,
    last: Option<u32>,
    /// By token: how long the sequence is that it would repeat. Scratch.
    lengths: FxHashMap<u32, usize>,
}

impl Dry {
    /// The rule of a request whose tokens so far are `tokens`; none if it has none.
    pub fn new(rules: &SamplingRow, breakers: FxHashSet<u32>, tokens: &[u32]) -> Option<Self> {
        rules.has_dry().then(|| {
            let mut dry = Self {
                multiplier: rules.dry_multiplier,
                base: rules.dry_base,
                allowed: usize::try_from(rules.dry_allowed_length).unwrap_or(0),
                window: usize::try_from(rules.dry_penalty_last_n).unwrap_or(usize::MAX),
                breakers,
                followers: FxHashMap::default(),
                most: 0,
                last: None,
                lengths: FxHashMap::default(),
            };
            tokens.iter().for_each(|token| dry.push(*token));
            dry
        })
    }

    /// Takes a token in.
    pub fn push(&mut self, token: u32) {
        if let Some(last) = self.last.replace(token) {
            let followers = self.followers.entry(last).or_default();
            followers.insert(token);
            self.most = self.most.max(followers.len());
        }
    }

    /// The most tokens that are penalized behind this many tokens beyond those that were pushed.
    pub fn bound(&self, ahead: usize) -> usize {
        self.most + ahead
    }

    /// What is taken from the logits of which tokens behind `known` and then `drafts`.
    pub fn find(&mut self, known: &[u32], drafts: &[u32]) -> FxHashMap<u32, f32> {
        self.lengths.clear();
        let end = known.len() + drafts.len();
        let at = |place: usize| if place < known.len() { known[place] } else { drafts[place - known.len()] };
        let begin = end.saturating_sub(self.window);
        let most = self.allowed + MAX_GROWTH;
        // Tokens up to the end that may be repeated.
        let unbroken = (begin..end).rev().take(most).take_while(|place| !self.breakers.contains(&at(*place)));
        let most = unbroken.count();
        if most == 0 {
            return FxHashMap::default();
        }
        for place in (begin..end - 1).filter(|place| at(*place) == at(end - 1)) {
            let next = at(place + 1);
            if self.breakers.contains(&next) {
                continue;
            }
            let before = (begin..=place).rev().zip((0..end).rev()).take(most);
            let length = before.take_while(|&(ours, theirs)| at(ours) == at(theirs)).count();
            let longest = self.lengths.entry(next).or_default();
            *longest = length.max(*longest);
        }
        let long = self.lengths.iter().filter(|(_, length)| **length >= self.allowed);
        long.map(|(&token, &length)| (token, self.penalty(length - self.allowed))).collect()
    }

    fn penalty(&self, growth: usize) -> f32 {
        (0..growth).fold(self.multiplier, |penalty, _| penalty * self.base).min(f32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: SamplingRow =
        SamplingRow { dry_multiplier: 0.5, dry_base: 2.0, dry_allowed_length: 2, ..SamplingRow::NEUTRAL };

    fn found(rules: SamplingRow, breakers: &[u32], tokens: &[u32], drafts: usize) -> Vec<(u32, f32)> {
        let (known, drafts) = tokens.split_at(tokens.len() - drafts);
        let mut dry = Dry::new(&rules, breakers.iter().copied().collect(), known).unwrap();
        let mut found: Vec<_> = dry.find(known, drafts).into_iter().collect();
        assert!(found.len() <= dry.bound(drafts.len()));
        found.sort_by_key(|penalty| penalty.0);
        found
    }

    #[test]
    fn longer_repetitions_cost_more() {
        let text = [9, 1, 2, 3, 4, 8, 2, 3, 5, 7, 1, 2, 3];
        assert_eq!(found(RULES, &[], &text, 0), [(4, 1.0), (5, 0.5)]);
        assert_eq!(found(RULES, &[], &text, 2), [(4, 1.0), (5, 0.5)], "as drafts, too");
        assert_eq!(found(RULES, &[2], &text, 0), [], "a sequence ends at a breaker");
        assert_eq!(found(RULES, &[1], &text, 0), [(4, 0.5), (5, 0.5)]);
        assert_eq!(found(RULES, &[4], &text, 0), [(5, 0.5)], "a breaker is not penalized");
        assert_eq!(found(RULES, &[3], &text, 0), []);
        let window = SamplingRow { dry_penalty_last_n: 8, ..RULES };
        assert_eq!(found(window, &[], &text, 0), [(5, 0.5)]);
        assert!(
            Dry::new(&SamplingRow { dry_penalty_last_n: 0, ..RULES }, FxHashSet::default(), &[]).is_none()
        );
        assert_eq!(found(SamplingRow { dry_allowed_length: 3, ..RULES }, &[], &text, 0), [(4, 0.5)]);
    }

    #[test]
    fn it_stays_a_number() {
        let endless = SamplingRow { dry_base: 1e9, ..RULES };
        assert_eq!(found(endless, &[], &[1; 500], 0), [(1, f32::MAX)]);
        assert_eq!(found(RULES, &[], &[], 0), []);
        assert_eq!(found(RULES, &[], &[1], 0), []);
    }

    /// The length for each token by looking at every pair of ends.
    fn defined(rules: &SamplingRow, breakers: &[u32], text: &[u32]) -> Vec<(u32, f32)> {
        let begin = match usize::try_from(rules.dry_penalty_last_n) {
            Ok(last) => text.len().saturating_sub(last),
            Err(_) => 0,
        };
        let text = &text[begin..];
        let allowed = rules.dry_allowed_length as usize;
        let length = |token: u32| {
            (1..text.len())
                .filter(|&end| text[end] == token)
                .flat_map(|end| (1..=end).filter(move |&length| text.ends_with(&text[end - length..end])))
                .filter(|&length| {
                    length <= allowed + MAX_GROWTH
                        && !text[text.len() - length..].iter().any(|t| breakers.contains(t))
                })
                .max()
        };
        let penalty = |length: usize| rules.dry_multiplier * rules.dry_base.powi((length - allowed) as i32);
        (0..5)
            .filter(|token| !breakers.contains(token))
            .filter_map(|token| Some((token, length(token).filter(|l| *l >= allowed)?)))
            .map(|(token, length)| (token, penalty(length)))
            .collect()
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_is_defined(
            text in prop::collection::vec(0u32..5, 1..60),
            breakers in prop::collection::vec(0u32..5, 0..2),
            drafts in 0usize..4,
            allowed in 0i32..5,
            window in prop_oneof![Just(-1), 1i32..70],
        ) {
            let rules =
                SamplingRow { dry_allowed_length: allowed, dry_penalty_last_n: window, ..RULES };
            let drafts = drafts.min(text.len() - 1);
            prop_assert_eq!(found(rules, &breakers, &text, drafts), defined(&rules, &breakers, &text));
        }
    }
}
