//! Masks, and the cache of those that were made.
//!
//! ```text
//!  (automaton, row, verdict, end) ──► mask ◄── content        states that allow the same tokens share one mask
//! ```
//!
//! All requests of a tokenizer share the cache. It holds at most [`MAX_BYTES`] of masks and of keys. When it is full, a
//! sweep forgets those that were not used while its second half was filled. A look-up is O(1), a new mask O(vocabulary / 32).

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustc_hash::{FxHashMap, FxHasher};

/// How many bytes of masks and keys are kept.
const MAX_BYTES: usize = 64 << 20;
/// A power of two: threads that look for different states seldom wait for each other.
const SHARDS: usize = 16;
/// What a key takes beside its mask, in bytes.
const KEY_BYTES: usize = 64;

/// Which tokens may come next: bit `t % 32` of word `t / 32` is token `t`.
#[derive(Debug)]
pub struct Mask {
    tokens: Tokens,
    /// The age of the cache when it was used last.
    used: AtomicU32,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Tokens {
    /// So few that their ids take less than a mask.
    Few(Box<[u32]>),
    Many(Box<[u32]>),
}

impl Mask {
    /// A mask of words.
    pub fn new(words: &[u32]) -> Self {
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        let tokens = match (count as usize) <= (words.len() / 4).max(1) {
            true => Tokens::Few(ids(words).collect()),
            false => Tokens::Many(words.into()),
        };
        Self { tokens, used: AtomicU32::new(0) }
    }

    /// A mask of a few tokens.
    pub fn of(tokens: Vec<u32>) -> Self {
        Self { tokens: Tokens::Few(tokens.into()), used: AtomicU32::new(0) }
    }

    /// Overwrites `mask` with it; words that it lacks become 0, and tokens that `mask` has no place for are left out.
    pub fn write(&self, mask: &mut [u32]) {
        match &self.tokens {
            Tokens::Few(ids) => {
                mask.fill(0);
                for id in ids {
                    if let Some(word) = mask.get_mut(*id as usize / 32) {
                        *word |= 1 << (id % 32);
                    }
                }
            }
            Tokens::Many(words) => {
                let common = words.len().min(mask.len());
                mask[..common].copy_from_slice(&words[..common]);
                mask[common..].fill(0);
            }
        }
    }

    /// The token that it allows, if that is only one.
    pub fn single(&self) -> Option<u32> {
        match &self.tokens {
            Tokens::Few(ids) if ids.len() == 1 => Some(ids[0]),
            _ => None,
        }
    }

    fn memory(&self) -> usize {
        let (Tokens::Few(words) | Tokens::Many(words)) = &self.tokens;
        4 * words.len() + KEY_BYTES
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

/// What a mask depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The automaton of a grammar.
    pub automaton: u64,
    /// The parser's row.
    pub row: u32,
    /// What the lexer's state says.
    pub verdict: u32,
    /// The lexemes that end if the text ends here.
    pub end: u32,
}

/// The masks that are kept.
pub(crate) struct MaskCache {
    by_state: [Mutex<FxHashMap<State, Weak<Mask>>>; SHARDS],
    contents: Mutex<Contents>,
    /// Grows with each half that is filled.
    age: AtomicU32,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Contents {
    masks: FxHashMap<u64, Vec<Arc<Mask>>>,
    bytes: usize,
    max_bytes: usize,
    /// How many bytes there are when the second half begins; None from then on.
    half: Option<usize>,
}

impl MaskCache {
    pub fn new() -> Self {
        Self::with_limit(MAX_BYTES)
    }

    fn with_limit(max_bytes: usize) -> Self {
        Self {
            by_state: Default::default(),
            contents: Mutex::new(Contents { max_bytes, half: Some(max_bytes / 2), ..Contents::default() }),
            age: AtomicU32::new(1),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The mask of a state, if it is kept.
    pub fn get(&self, state: &State) -> Option<Arc<Mask>> {
        let found = lock(self.shard(state)).get(state).and_then(Weak::upgrade);
        if let Some(mask) = &found {
            mask.used.store(self.age.load(Ordering::Relaxed), Ordering::Relaxed);
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Keeps the mask of a state; gives the one that others with the same tokens have.
    pub fn insert(&self, state: State, words: &[u32]) -> Arc<Mask> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        let mask = self.share(Mask::new(words), KEY_BYTES);
        lock(self.shard(&state)).insert(state, Arc::downgrade(&mask));
        mask
    }

    /// Keeps a mask that is known already for another state.
    pub fn insert_known(&self, state: State, mask: &Arc<Mask>) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        mask.used.store(self.age.load(Ordering::Relaxed), Ordering::Relaxed);
        self.grow(&mut lock(&self.contents), KEY_BYTES);
        lock(self.shard(&state)).insert(state, Arc::downgrade(mask));
    }

    /// The mask with the same tokens that is kept, or this one from now on.
    fn share(&self, mask: Mask, more: usize) -> Arc<Mask> {
        let mut hasher = FxHasher::default();
        mask.tokens.hash(&mut hasher);
        let mut contents = lock(&self.contents);
        self.grow(&mut contents, mask.memory() + more);
        contents.bytes -= mask.memory();
        mask.used.store(self.age.load(Ordering::Relaxed), Ordering::Relaxed);
        let like = contents.masks.entry(hasher.finish()).or_default();
        if let Some(known) = like.iter().find(|known| known.tokens == mask.tokens) {
            return known.clone();
        }
        let mask = Arc::new(mask);
        like.push(mask.clone());
        contents.bytes += mask.memory();
        mask
    }

    /// Makes room for so many bytes more, which are counted.
    fn grow(&self, contents: &mut Contents, more: usize) {
        let bytes = contents.bytes + more;
        if contents.half.take_if(|half| bytes > *half).is_some() {
            self.age.fetch_add(1, Ordering::Relaxed);
        }
        if bytes > contents.max_bytes {
            self.sweep(contents);
        }
        contents.bytes += more;
    }

    /// Forgets the masks that were not used since the second half began; all of them if that leaves too many.
    fn sweep(&self, contents: &mut Contents) {
        let now = self.age.load(Ordering::Relaxed);
        let used = |mask: &Arc<Mask>| mask.used.load(Ordering::Relaxed) >= now;
        contents.masks.retain(|_, like| {
            like.retain(used);
            !like.is_empty()
        });
        let count =
            |contents: &Contents| contents.masks.values().flatten().map(|mask| mask.memory()).sum::<usize>();
        if count(contents) > contents.max_bytes / 4 * 3 {
            contents.masks.clear();
        }
        let mut keys = 0;
        for shard in &self.by_state {
            let mut shard = lock(shard);
            shard.retain(|_, mask| mask.strong_count() > 0);
            if shard.len() * SHARDS * KEY_BYTES > contents.max_bytes / 8 {
                shard.clear();
            }
            keys += shard.len();
        }
        contents.bytes = count(contents) + keys * KEY_BYTES;
        contents.half = Some(contents.bytes + (contents.max_bytes - contents.bytes) / 2);
    }

    /// How many masks were found, how many had to be made, and how many bytes are kept.
    pub fn counts(&self) -> [u64; 3] {
        let bytes = lock(&self.contents).bytes as u64;
        [self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed), bytes]
    }

    fn shard(&self, state: &State) -> &Mutex<FxHashMap<State, Weak<Mask>>> {
        let mut hasher = FxHasher::default();
        state.hash(&mut hasher);
        &self.by_state[(hasher.finish() >> 40) as usize % SHARDS]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(row: u32) -> State {
        State { automaton: 1, row, verdict: 0, end: 0 }
    }

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

    #[test]
    fn equal_masks_are_one() {
        let cache = MaskCache::new();
        let (a, b) = (cache.insert(state(1), &[1, 2]), cache.insert(state(2), &[1, 2]));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &cache.insert(state(3), &[1, 3])));
        assert!(Arc::ptr_eq(&a, &cache.get(&state(2)).unwrap()));
        assert!(cache.get(&state(4)).is_none());
        assert_eq!(cache.counts()[..2], [1, 3]);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let limit = 100_000;
        let cache = MaskCache::with_limit(limit);
        for row in 0..5_000 {
            cache.insert(state(row), &vec![row; 64]);
            assert!(cache.counts()[2] as usize <= limit);
            cache.get(&state(0));
        }
        assert!(cache.get(&state(0)).is_some() && cache.get(&state(1)).is_none());
        let keys: usize = cache.by_state.iter().map(|shard| lock(shard).len()).sum();
        assert!(keys * KEY_BYTES <= limit);
        // Keys alone are bounded, too.
        (0..5_000).for_each(|row| drop(cache.insert(state(row), &[u32::MAX; 64])));
        let keys: usize = cache.by_state.iter().map(|shard| lock(shard).len()).sum();
        assert!(keys * KEY_BYTES <= limit && cache.counts()[2] as usize <= limit);
    }
}
