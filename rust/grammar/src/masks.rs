//! Masks, and the cache of those that were made.
//!
//! ```text
//!  (automaton, row, verdict, ...) ──► mask ◄── content        states that allow the same tokens share one mask
//! ```
//!
//! All requests of a tokenizer share the cache. It holds at most [`MAX_BYTES`] of masks and of keys. When it is full, a
//! sweep forgets those that were not used while its second half was filled. A look-up is O(1).

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustc_hash::{FxHashMap, FxHasher};

mod mask;

pub use mask::Mask;

/// How many bytes of masks and keys are kept.
const MAX_BYTES: usize = 64 << 20;
/// A power of two: threads that look for different states seldom wait for each other.
const SHARDS: usize = 16;
/// What a key takes beside its mask, in bytes.
const KEY_BYTES: usize = 64;

/// What a mask depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// The automaton of a grammar.
    pub automaton: u64,
    /// The parser's row.
    pub row: u32,
    /// What the lexer's state says.
    pub verdict: u32,
    /// The lexemes that end if the text ends here.
    pub end: u32,
    /// What is remembered of an array of different items.
    pub memory: u32,
}

/// The masks that are kept.
pub struct MaskCache {
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

impl Default for MaskCache {
    fn default() -> Self {
        Self::with_limit(MAX_BYTES)
    }
}

impl MaskCache {
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
            mask.touch(self.age.load(Ordering::Relaxed));
        }
        found
    }

    /// Counts a mask that a step needed: it was found, or made.
    pub fn count(&self, found: bool) {
        let counter = if found { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the mask of a state; gives the one that others with the same tokens have.
    pub fn insert(&self, state: State, mask: Arc<Mask>) -> Arc<Mask> {
        let mask = self.share(mask);
        lock(self.shard(&state)).insert(state, Arc::downgrade(&mask));
        mask
    }

    /// Keeps a mask that is known already for another state.
    pub fn insert_known(&self, state: State, mask: &Arc<Mask>) {
        mask.touch(self.age.load(Ordering::Relaxed));
        self.grow(&mut lock(&self.contents), KEY_BYTES);
        lock(self.shard(&state)).insert(state, Arc::downgrade(mask));
    }

    /// The mask with the same tokens that is kept, or this one from now on; a key for it is counted, too.
    fn share(&self, mask: Arc<Mask>) -> Arc<Mask> {
        let bytes = mask.memory() + KEY_BYTES;
        let mut contents = lock(&self.contents);
        self.grow(&mut contents, bytes + KEY_BYTES);
        let age = self.age.load(Ordering::Relaxed);
        let like = contents.masks.entry(mask.content()).or_default();
        if let Some(known) = like.iter().find(|known| known.is_same(&mask)) {
            known.touch(age);
            let known = known.clone();
            contents.bytes -= bytes;
            return known;
        }
        mask.touch(age);
        like.push(mask.clone());
        mask
    }

    /// Makes room for `bytes` more, and counts them.
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
        let used = |mask: &Arc<Mask>| mask.used() >= now;
        contents.masks.retain(|_, like| {
            like.retain(used);
            !like.is_empty()
        });
        let count = |contents: &Contents| {
            contents.masks.values().flatten().map(|mask| mask.memory() + KEY_BYTES).sum::<usize>()
        };
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

    /// How many masks that steps needed were found, how many had to be made, and how many bytes are kept.
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
        State { automaton: 1, row, verdict: 0, end: 0, memory: 0 }
    }

    fn mask(words: &[u32]) -> Arc<Mask> {
        Arc::new(Mask::new(words))
    }

    #[test]
    fn equal_masks_are_one() {
        let cache = MaskCache::default();
        let (a, b) = (cache.insert(state(1), mask(&[1, 2])), cache.insert(state(2), mask(&[1, 2])));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &cache.insert(state(3), mask(&[1, 3]))));
        assert!(Arc::ptr_eq(&a, &cache.get(&state(2)).unwrap()));
        assert!(cache.get(&state(4)).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let limit = 100_000;
        let cache = MaskCache::with_limit(limit);
        for row in 0..5_000 {
            cache.insert(state(row), mask(&[row; 64]));
            assert!(cache.counts()[2] as usize <= limit);
            cache.get(&state(0));
        }
        assert!(cache.get(&state(0)).is_some() && cache.get(&state(1)).is_none());
        let keys: usize = cache.by_state.iter().map(|shard| lock(shard).len()).sum();
        assert!(keys * KEY_BYTES <= limit);
        // Keys alone are bounded, too.
        (0..5_000).for_each(|row| drop(cache.insert(state(row), mask(&[u32::MAX; 64]))));
        let keys: usize = cache.by_state.iter().map(|shard| lock(shard).len()).sum();
        assert!(keys * KEY_BYTES <= limit && cache.counts()[2] as usize <= limit);
    }
}
