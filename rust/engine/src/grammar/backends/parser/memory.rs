//! What is remembered within an array of different items: the values that have come, and the item that has begun.
//!
//! ```text
//!  ["a", "b      seen  ─ "a"          entries are chains, each kept once: equal texts of equal arrays are
//!                item  ─ " ─ b        one entry, and O(1) bytes are kept for a byte of an answer
//! ```
//!
//! Only what stands in such an array is remembered, and nothing behind its end. Adding a byte is O(1), looking for a value
//! O(values that have come).

use rustc_hash::FxHashMap;

use super::values;

/// What is remembered.
pub(super) type MemoryId = u32;
/// Nothing: the text is not within such an array.
pub(super) const NOTHING: MemoryId = 0;

/// The values of an array so far; 0 is none.
type SeenId = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Entry {
    Nothing,
    /// An item has ended.
    Ended(SeenId),
    /// An item may begin.
    Before(SeenId),
    /// An item has begun: the entry before its last byte.
    Within(MemoryId, u8),
}

/// Where a text is in an array of different items.
pub(super) enum Stage {
    Outside,
    Ended,
    /// An item may begin, or has.
    Item,
}

/// All that is remembered so far.
#[derive(Debug)]
pub(super) struct Memories {
    entries: Vec<Entry>,
    known: FxHashMap<Entry, MemoryId>,
    /// Each with those that came before it.
    seen: Vec<(SeenId, Box<[u8]>)>,
    known_seen: FxHashMap<(SeenId, Box<[u8]>), SeenId>,
    bytes: usize,
}

impl Default for Memories {
    fn default() -> Self {
        Self {
            entries: vec![Entry::Nothing],
            known: FxHashMap::default(),
            seen: vec![(0, Box::default())],
            known_seen: FxHashMap::default(),
            bytes: 0,
        }
    }
}

impl Memories {
    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.bytes + self.entries.len() * 48
    }

    pub fn stage(&self, memory: MemoryId) -> Stage {
        match self.entries[memory as usize] {
            Entry::Nothing => Stage::Outside,
            Entry::Ended(_) => Stage::Ended,
            Entry::Before(_) | Entry::Within(..) => Stage::Item,
        }
    }

    /// The same where a byte of an item has come.
    #[inline]
    pub fn with(&mut self, memory: MemoryId, byte: u8) -> MemoryId {
        if memory == NOTHING {
            return NOTHING;
        }
        match self.entries[memory as usize] {
            Entry::Before(_) | Entry::Within(..) => self.keep(Entry::Within(memory, byte)),
            Entry::Nothing | Entry::Ended(_) => memory,
        }
    }

    /// An item may begin: the first of an array, or one behind those that have come.
    pub fn item(&mut self, memory: MemoryId) -> MemoryId {
        let seen = match self.entries[memory as usize] {
            Entry::Ended(seen) => seen,
            _ => 0,
        };
        self.keep(Entry::Before(seen))
    }

    /// White space has come in place of the item.
    pub fn without_space(&mut self, memory: MemoryId) -> MemoryId {
        match self.stage(memory) {
            Stage::Item => {
                let (seen, _) = self.parts(memory);
                self.keep(Entry::Before(seen))
            }
            _ => memory,
        }
    }

    /// The item has ended; None if its value has come before.
    pub fn ended(&mut self, memory: MemoryId) -> Option<MemoryId> {
        let (seen, text) = self.parts(memory);
        let value: Box<[u8]> = values::whole(&text).into();
        if self.values(seen).any(|known| known == &*value) {
            return None;
        }
        let next = self.seen.len() as SeenId;
        let after = *self.known_seen.entry((seen, value.clone())).or_insert(next);
        if after == next {
            self.bytes += 2 * value.len() + 96;
            self.seen.push((seen, value));
        }
        Some(self.keep(Entry::Ended(after)))
    }

    /// Whether one is the other with another byte of the same item, or of the white space before it.
    pub fn is_before(&self, memory: MemoryId, next: MemoryId) -> bool {
        let before = match self.entries[next as usize] {
            Entry::Within(before, _) => before,
            _ => next,
        };
        match self.entries[before as usize] {
            _ if before == memory => true,
            Entry::Before(seen) => matches!(self.stage(memory), Stage::Item) && self.parts(memory).0 == seen,
            _ => false,
        }
    }

    /// The text of the item so far.
    pub fn text(&self, memory: MemoryId) -> Vec<u8> {
        self.parts(memory).1
    }

    /// The values that have come and that the item may still become, ascending.
    pub fn likely(&self, memory: MemoryId) -> Vec<&[u8]> {
        let (seen, text) = self.parts(memory);
        let begun = values::begun(&text);
        let mut found: Vec<_> = self.values(seen).filter(|value| value.starts_with(&begun)).collect();
        found.sort_unstable();
        found
    }

    fn values(&self, mut seen: SeenId) -> impl Iterator<Item = &[u8]> {
        std::iter::from_fn(move || {
            let (before, value) = (seen != 0).then(|| &self.seen[seen as usize])?;
            seen = *before;
            Some(&**value)
        })
    }

    /// The values that have come, and the text of the item.
    fn parts(&self, mut memory: MemoryId) -> (SeenId, Vec<u8>) {
        let mut text = Vec::new();
        loop {
            match self.entries[memory as usize] {
                Entry::Within(before, byte) => {
                    text.push(byte);
                    memory = before;
                }
                Entry::Before(seen) | Entry::Ended(seen) => {
                    text.reverse();
                    return (seen, text);
                }
                Entry::Nothing => return (0, text),
            }
        }
    }

    fn keep(&mut self, entry: Entry) -> MemoryId {
        let next = self.entries.len() as MemoryId;
        let kept = *self.known.entry(entry).or_insert(next);
        if kept == next {
            self.entries.push(entry);
        }
        kept
    }
}

/// Whether an item of this text may still become one of some values, which are sorted.
pub(super) fn may_become(text: &[u8], values: &[Box<[u8]>]) -> bool {
    let begun = values::begun(text);
    let at = values.partition_point(|value| **value < *begun);
    values.get(at).is_some_and(|value| value.starts_with(&begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_once_however_it_is_written() {
        let mut memories = Memories::default();
        let write = |memories: &mut Memories, memory, text: &str| {
            let memory = memories.item(memory);
            let memory = text.bytes().fold(memory, |memory, byte| memories.with(memory, byte));
            memories.ended(memory)
        };
        let mut memory = NOTHING;
        for text in ["\"a\"", "\"b\"", "1", "\"1\""] {
            memory = write(&mut memories, memory, text).unwrap();
        }
        for text in ["\"\\u0061\"", "\"b\"", "1.0"] {
            assert_eq!(write(&mut memories, memory, text), None, "{text}");
        }
        assert!(write(&mut memories, NOTHING, "\"a\"").is_some(), "another array");
        let again = ["\"a\"", "\"b\"", "1", "\"1\""]
            .iter()
            .fold(NOTHING, |memory, text| write(&mut memories, memory, text).unwrap());
        assert_eq!(again, memory, "an equal array is the same entry");
    }

    #[test]
    fn what_an_item_may_become_is_known() {
        let mut memories = Memories::default();
        let mut memory = memories.item(NOTHING);
        for text in ["\"abc\"", "\"abd\"", "\"x\"", "12"] {
            memory = text.bytes().fold(memory, |memory, byte| memories.with(memory, byte));
            memory = memories.ended(memory).unwrap();
            memory = memories.item(memory);
        }
        let count = |memories: &mut Memories, text: &str| {
            let memory = text.bytes().fold(memory, |memory, byte| memories.with(memory, byte));
            let likely: Vec<Box<[u8]>> = memories.likely(memory).into_iter().map(Into::into).collect();
            assert_eq!(may_become(text.as_bytes(), &likely), !likely.is_empty());
            likely.len()
        };
        for (text, likely) in [
            ("", 4),
            ("\"", 3),
            ("\"ab", 2),
            ("\"abc", 1),
            ("\"abc\"", 1),
            ("\"ab\"", 0),
            ("\"\\u0061", 2),
            ("9", 1),
            ("t", 0),
        ] {
            assert_eq!(count(&mut memories, text), likely, "{text}");
        }
    }
}
