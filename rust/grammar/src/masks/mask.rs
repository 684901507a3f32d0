//! One mask, as small as its tokens allow.
//!
//! ```text
//!  few    3 17 20481                     a literal, the end of an object
//!  over   a base that many share + 34 77   the inside of a string, and what may follow it
//!  many   01101110...                    anything else
//! ```

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which tokens may come next: bit `t % 32` of word `t / 32` is token `t`.
#[derive(Debug)]
pub struct Mask {
    tokens: Tokens,
    /// The age of the cache when it was used last.
    used: AtomicU32,
}

#[derive(Debug)]
enum Tokens {
    /// So few that their ids take less than a mask.
    Few(Box<[u32]>),
    /// The tokens of a base that its owner keeps, and a few more that it lacks, ascending.
    Over {
        base: Arc<[u32]>,
        more: Box<[u32]>,
    },
    Many(Box<[u32]>),
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Few(a), Self::Few(b)) | (Self::Many(a), Self::Many(b)) => a == b,
            (Self::Over { base: a, more: b }, Self::Over { base: c, more: d }) => Arc::ptr_eq(a, c) && b == d,
            _ => false,
        }
    }
}

impl Hash for Tokens {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match self {
            Self::Few(words) | Self::Many(words) => words.hash(hasher),
            Self::Over { base, more } => (base.as_ptr().addr(), more).hash(hasher),
        }
    }
}

impl Mask {
    /// A mask of words.
    pub fn new(words: &[u32]) -> Self {
        Self::from(Self::few(words).map_or_else(|| Tokens::Many(words.into()), Tokens::Few))
    }

    /// A mask of a few tokens.
    pub fn of(tokens: Vec<u32>) -> Self {
        Self::from(Tokens::Few(tokens.into()))
    }

    /// A mask of words that others refer to, and that are not counted with them.
    pub fn base(words: Vec<u32>) -> Self {
        let tokens = Self::few(&words).map(Tokens::Few);
        Self::from(tokens.unwrap_or_else(|| Tokens::Over { base: words.into(), more: [].into() }))
    }

    fn from(tokens: Tokens) -> Self {
        Self { tokens, used: AtomicU32::new(0) }
    }

    fn few(words: &[u32]) -> Option<Box<[u32]>> {
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        (count as usize <= most(words.len())).then(|| ids(words).collect())
    }

    /// Its tokens and `more`, for a vocabulary of `words` words. O(tokens listed), or O(words) where those are many.
    pub fn with(self: &Arc<Self>, mut more: Vec<u32>, words: usize) -> Arc<Self> {
        more.retain(|token| !self.is_shared(*token));
        if more.is_empty() {
            return self.clone();
        }
        more.extend_from_slice(self.beside());
        let mut all = None;
        if more.len() > most(words) {
            let mut words = vec![0; words];
            let shared = self.words();
            words[..shared.len()].copy_from_slice(shared);
            more.retain(|token| {
                let (word, bit) = (&mut words[*token as usize / 32], 1 << (token % 32));
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            });
            all = Some(words).filter(|words| more.len() > most(words.len()));
        }
        let tokens = match (all, &self.tokens) {
            (Some(all), _) => Tokens::Many(all.into()),
            (None, Tokens::Many(words)) => {
                let mut all = words.clone();
                set(&mut all, &more);
                Tokens::Many(all)
            }
            (None, tokens) => {
                more.sort_unstable();
                more.dedup();
                match tokens {
                    Tokens::Over { base, .. } => Tokens::Over { base: base.clone(), more: more.into() },
                    _ => Tokens::Few(more.into()),
                }
            }
        };
        Arc::new(Self::from(tokens))
    }

    /// Without some of its tokens, and with others, for a vocabulary of `words` words.
    pub fn but(&self, except: &[u32], more: &[u32], words: usize) -> Self {
        let mut all = vec![0; words];
        self.write(&mut all);
        except.iter().for_each(|token| all[*token as usize / 32] &= !(1 << (token % 32)));
        set(&mut all, more);
        Self::new(&all)
    }

    /// The tokens that it has beside its words.
    fn beside(&self) -> &[u32] {
        match &self.tokens {
            Tokens::Few(ids) | Tokens::Over { more: ids, .. } => ids,
            Tokens::Many(_) => &[],
        }
    }

    /// Its words, which have all but the tokens that it lists.
    fn words(&self) -> &[u32] {
        match &self.tokens {
            Tokens::Few(_) => &[],
            Tokens::Over { base, .. } => base,
            Tokens::Many(words) => words,
        }
    }

    /// Whether its words, those that it does not list, have a token.
    fn is_shared(&self, token: u32) -> bool {
        self.words().get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Whether it allows a token.
    pub fn has(&self, token: u32) -> bool {
        self.is_shared(token) || self.beside().contains(&token)
    }

    /// Overwrites `mask` with it; words that it lacks become 0, and tokens that `mask` has no place for are left out.
    pub fn write(&self, mask: &mut [u32]) {
        let words = self.words();
        let common = words.len().min(mask.len());
        mask[..common].copy_from_slice(&words[..common]);
        mask[common..].fill(0);
        set(mask, self.beside());
    }

    /// The token that it allows, if that is only one.
    pub fn single(&self) -> Option<u32> {
        match &self.tokens {
            Tokens::Few(ids) if ids.len() == 1 => Some(ids[0]),
            _ => None,
        }
    }

    /// Its tokens, if they are at most `most`.
    pub fn listed(&self, most: usize) -> Option<Vec<u32>> {
        match &self.tokens {
            Tokens::Few(ids) => (ids.len() <= most).then(|| ids.to_vec()),
            Tokens::Over { .. } => None,
            Tokens::Many(words) => {
                let count: u32 = words.iter().map(|word| word.count_ones()).sum();
                (count as usize <= most).then(|| ids(words).collect())
            }
        }
    }

    /// Whether it allows nothing.
    pub fn is_empty(&self) -> bool {
        matches!(&self.tokens, Tokens::Few(ids) if ids.is_empty())
    }

    /// A hash of its tokens.
    pub fn content(&self) -> u64 {
        let mut hasher = rustc_hash::FxHasher::default();
        self.tokens.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether it was made of the same tokens in the same form.
    pub fn is_same(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }

    /// How many bytes its tokens take, besides its base.
    pub fn memory(&self) -> usize {
        let (Tokens::Few(words) | Tokens::Many(words) | Tokens::Over { more: words, .. }) = &self.tokens;
        4 * words.len()
    }

    /// Notes that it was used at this age of the cache.
    pub fn touch(&self, age: u32) {
        self.used.store(age, Ordering::Relaxed);
    }

    /// The age at which it was used last.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Number of tokens that are listed where a mask has `words` words.
fn most(words: usize) -> usize {
    (words / 4).max(1)
}

fn set(mask: &mut [u32], ids: &[u32]) {
    for id in ids {
        if let Some(word) = mask.get_mut(*id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }
}

/// The tokens of a mask.
fn ids(words: &[u32]) -> impl Iterator<Item = u32> + '_ {
    (0..).zip(words).flat_map(|(at, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(at * 32 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(mask: &Mask, count: usize) -> Vec<u32> {
        let mut out = vec![u32::MAX; count];
        mask.write(&mut out);
        out
    }

    #[test]
    fn masks_keep_their_tokens() {
        for made in
            [vec![0, 1 << 31, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![u32::MAX, 3, 0, 1], vec![0; 3]]
        {
            assert_eq!(words(&Mask::new(&made), made.len()), made);
        }
        assert_eq!(words(&Mask::new(&[7]), 3), [7, 0, 0]);
        assert_eq!(words(&Mask::of(vec![33]), 3), [0, 2, 0]);
        let mut one = [0; 8];
        one[2] = 16;
        assert_eq!((Mask::new(&one).single(), Mask::new(&[3; 8]).single()), (Some(68), None));
    }

    proptest! {
        #[test]
        fn what_is_added_is_allowed(
            first in prop::collection::vec(prop::sample::select(vec![0, 4, u32::MAX]), 12),
            more in prop::collection::vec(0u32..384, 0..8), again in prop::collection::vec(0u32..384, 0..8)
        ) {
            let mut expected = first.clone();
            set(&mut expected, &more);
            set(&mut expected, &again);
            for begun in [Mask::new(&first), Mask::base(first.clone())].map(Arc::new) {
                let (one, two) = (begun.with(more.clone(), 12).with(again.clone(), 12),
                    begun.with([again.clone(), more.clone()].concat(), 12));
                prop_assert_eq!(words(&one, 12), expected.clone());
                // One set of tokens that grew in two ways has one form, so that the cache keeps it once.
                prop_assert!(one.is_same(&two) && one.content() == two.content());
                let mut without = expected.clone();
                again.iter().for_each(|token| without[*token as usize / 32] &= !(1 << (token % 32)));
                set(&mut without, &more);
                prop_assert_eq!(words(&one.but(&again, &more, 12), 12), without);
                let count: u32 = expected.iter().map(|word| word.count_ones()).sum();
                prop_assert_eq!((one.single().is_some(), one.is_empty()), (count == 1, count == 0));
            }
        }
    }
}
