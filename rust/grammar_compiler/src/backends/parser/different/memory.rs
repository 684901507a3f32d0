//! What is remembered within an array of different items: the values that have come, and the item that has begun.
//!
//! ```text
//!  [{"a": [1, 2]}, {"a": [1, 3      seen  ─ {"a": [1, 2]}
//!                                   item  ─ { ─ " ─ a ─ " ─ : ─ [ ◄─── around
//!                                                                       │  seen  ─ 1      an array of different
//!                                                                       └  item  ─ 3      items in the item
//! ```
//!
//! Entries are chains, each kept once: equal texts of equal arrays are one entry, and O(1) bytes are kept for a byte of an
//! answer. Only what stands in such an array is remembered, and nothing behind its end; white space before an item is not.
//!
//! Adding a byte is O(1), but for the end of an array within an item, whose text becomes the item's. Looking for a value
//! is O(item + values that have come).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::values::{self, Begun, Json};

/// What is remembered.
pub(crate) type MemoryId = u32;
/// Nothing: the text is not within such an array.
pub(crate) const NOTHING: MemoryId = 0;

/// The values of an array so far; 0 is none.
type SeenId = u32;
/// An array of different items.
type ArrayId = u32;

/// The items of arrays of different items are nested no deeper than that, for their values are read by recursion.
const MAX_DEPTH: u32 = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Entry {
    Nothing,
    /// An item has ended.
    Ended(ArrayId),
    /// A comma has come behind it.
    Between(ArrayId),
    /// An item may begin.
    Before(ArrayId),
    /// An item has begun: the entry before its last byte.
    Within(MemoryId, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Array {
    /// The memory of the item that it stands in.
    around: MemoryId,
    seen: SeenId,
}

/// Where in an item a text has come.
#[derive(Debug, Clone, Copy, Default)]
struct Inside {
    array: ArrayId,
    /// How many brackets are open.
    depth: u32,
    /// How many are open around the array.
    above: u32,
    string: bool,
    escape: bool,
}

#[derive(Debug)]
struct Seen {
    before: SeenId,
    text: Box<[u8]>,
    value: Arc<Json>,
}

/// Where a text is in an array of different items.
pub(crate) enum Stage {
    Outside,
    Ended,
    Between,
    Before,
    /// An item has begun and has not ended, ...
    Open,
    /// ... or may have.
    Whole,
    /// The value is nested too deeply.
    TooDeep,
}

/// An item, and the values that it may still become of those that have come.
pub(crate) struct Repeat {
    pub text: Vec<u8>,
    pub begun: Begun,
    pub values: Vec<Arc<Json>>,
}

impl Repeat {
    /// Whether the item is one of them if its text goes on so; `ended` says that what it ends with has ended.
    pub fn goes_on(&self, more: &[u8], ended: bool) -> bool {
        let begun = Begun::new(&[&self.text[..], more].concat(), ended);
        self.values.iter().any(|value| begun.may_become(value))
    }
}

/// All that is remembered so far.
#[derive(Debug)]
pub(crate) struct Memories {
    entries: Vec<(Entry, Inside)>,
    known: FxHashMap<Entry, MemoryId>,
    arrays: Vec<Array>,
    known_arrays: FxHashMap<Array, ArrayId>,
    seen: Vec<Seen>,
    known_seen: FxHashMap<(SeenId, Box<[u8]>), SeenId>,
    bytes: usize,
}

impl Default for Memories {
    fn default() -> Self {
        let none = Seen { before: 0, text: Box::default(), value: Arc::new(Json::List(Vec::new())) };
        Self {
            entries: vec![(Entry::Nothing, Inside::default())],
            known: FxHashMap::default(),
            arrays: Vec::new(),
            known_arrays: FxHashMap::default(),
            seen: vec![none],
            known_seen: FxHashMap::default(),
            bytes: 0,
        }
    }
}

impl Memories {
    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.bytes + self.entries.len() * 64 + self.arrays.len() * 32
    }

    pub fn stage(&self, memory: MemoryId) -> Stage {
        let (entry, inside) = self.entries[memory as usize];
        match entry {
            Entry::Nothing => Stage::Outside,
            Entry::Ended(_) => Stage::Ended,
            Entry::Between(_) => Stage::Between,
            Entry::Before(_) => Stage::Before,
            Entry::Within(..) if inside.above + inside.depth > MAX_DEPTH => Stage::TooDeep,
            Entry::Within(..) if inside.depth > 0 || inside.string => Stage::Open,
            Entry::Within(..) => Stage::Whole,
        }
    }

    /// Whether it is nested so deeply that a token might nest it too deeply.
    pub fn is_deep(&self, memory: MemoryId) -> bool {
        let inside = self.entries[memory as usize].1;
        inside.above + inside.depth > MAX_DEPTH / 2
    }

    /// The same where a byte of an array has come.
    #[inline]
    pub fn with(&mut self, memory: MemoryId, byte: u8) -> MemoryId {
        if memory == NOTHING {
            return NOTHING;
        }
        let (entry, inside) = self.entries[memory as usize];
        match (entry, byte) {
            (Entry::Nothing | Entry::Between(_), _) => memory,
            (Entry::Ended(array), b',') => self.keep(Entry::Between(array), inside),
            (Entry::Ended(_) | Entry::Before(_), b']') => self.without_array(memory, b"]"),
            (Entry::Ended(_), _) => memory,
            (Entry::Before(_), byte) if byte.is_ascii_whitespace() => memory,
            (Entry::Before(_) | Entry::Within(..), _) => {
                self.keep(Entry::Within(memory, byte), inside.behind(byte))
            }
        }
    }

    /// The first item may begin, of an array within the item.
    pub fn array(&mut self, around: MemoryId) -> MemoryId {
        let above = self.entries[around as usize].1;
        let array = self.keep_array(Array { around, seen: 0 });
        let inside = Inside { array, above: above.above + above.depth, ..Inside::default() };
        self.keep(Entry::Before(array), inside)
    }

    /// Another item may begin.
    pub fn item(&mut self, memory: MemoryId) -> MemoryId {
        let Inside { array, above, .. } = self.entries[memory as usize].1;
        self.keep(Entry::Before(array), Inside { array, above, ..Inside::default() })
    }

    /// The item has ended; None if its value has come before.
    pub fn ended(&mut self, memory: MemoryId) -> Option<MemoryId> {
        let Inside { array, above, .. } = self.entries[memory as usize].1;
        let Array { around, seen } = self.arrays[array as usize];
        let text: Box<[u8]> = self.text(memory).into();
        let value = values::whole(&text);
        if self.values(seen).any(|known| **known == value) {
            return None;
        }
        let next = self.seen.len() as SeenId;
        let after = *self.known_seen.entry((seen, text.clone())).or_insert(next);
        if after == next {
            // The value is about as long as its text, in parts.
            self.bytes += 8 * text.len() + 160;
            self.seen.push(Seen { before: seen, text, value: Arc::new(value) });
        }
        let array = self.keep_array(Array { around, seen: after });
        Some(self.keep(Entry::Ended(array), Inside { array, above, ..Inside::default() }))
    }

    /// The same where the array's items may be equal: its text is a part of the item around it.
    pub fn forgotten(&mut self, memory: MemoryId) -> MemoryId {
        self.without_array(memory, b"")
    }

    /// The item around an array with the array's text, and `more` of it.
    fn without_array(&mut self, memory: MemoryId, more: &[u8]) -> MemoryId {
        let around = self.arrays[self.entries[memory as usize].1.array as usize].around;
        let text = if around == NOTHING { Vec::new() } else { self.text_of_array(memory) };
        text.into_iter().chain(more.iter().copied()).fold(around, |memory, byte| self.with(memory, byte))
    }

    /// The items that a text goes on with, which may still become one that has come; the innermost first. Behind an item
    /// that is the next one.
    pub fn repeats(&self, memory: MemoryId) -> Vec<Repeat> {
        let (mut found, mut memory, mut inner) = (Vec::new(), memory, Vec::new());
        while memory != NOTHING {
            let array = self.arrays[self.entries[memory as usize].1.array as usize];
            let text = [&self.text(memory)[..], &inner].concat();
            if array.seen != 0 {
                let begun = Begun::new(&text, false);
                let may = |value: &&Arc<Json>| begun.may_become(value);
                let values: Vec<_> = self.values(array.seen).filter(may).cloned().collect();
                if !values.is_empty() {
                    found.push(Repeat { text, begun, values });
                }
            }
            inner = match array.around {
                NOTHING => Vec::new(),
                _ => [self.text_of_array(memory), inner].concat(),
            };
            memory = array.around;
        }
        found
    }

    /// Whether an item that has begun, or is to come, may still become one that has come.
    pub fn may_repeat(&self, memory: MemoryId) -> bool {
        let open = match self.stage(memory) {
            Stage::Ended | Stage::Between => self.around(memory),
            _ => memory,
        };
        if open == NOTHING {
            return false;
        }
        // The text of an array in an item is needed for what is around it, so all are looked at together.
        let skipped = usize::from(open != memory && self.seen_in(memory) != 0);
        self.repeats(memory).len() > skipped
    }

    fn around(&self, memory: MemoryId) -> MemoryId {
        self.arrays[self.entries[memory as usize].1.array as usize].around
    }

    fn seen_in(&self, memory: MemoryId) -> SeenId {
        self.arrays[self.entries[memory as usize].1.array as usize].seen
    }

    /// The values that have come in the innermost array, the last first.
    pub fn come(&self, memory: MemoryId) -> impl Iterator<Item = &Arc<Json>> {
        self.values(self.seen_in(memory))
    }

    fn values(&self, seen: SeenId) -> impl Iterator<Item = &Arc<Json>> {
        self.all_seen(seen).map(|seen| &seen.value)
    }

    fn all_seen(&self, mut seen: SeenId) -> impl Iterator<Item = &Seen> {
        std::iter::from_fn(move || {
            let found = (seen != 0).then(|| &self.seen[seen as usize])?;
            seen = found.before;
            Some(found)
        })
    }

    /// The text of the item so far.
    fn text(&self, mut memory: MemoryId) -> Vec<u8> {
        let mut text = Vec::new();
        while let Entry::Within(before, byte) = self.entries[memory as usize].0 {
            text.push(byte);
            memory = before;
        }
        text.reverse();
        text
    }

    /// The text of an array behind its bracket.
    fn text_of_array(&self, memory: MemoryId) -> Vec<u8> {
        let mut items: Vec<&[u8]> = self.all_seen(self.seen_in(memory)).map(|seen| &*seen.text).collect();
        items.reverse();
        let mut text = items.join(&b","[..]);
        if !matches!(self.stage(memory), Stage::Ended) {
            if !items.is_empty() {
                text.push(b',');
            }
            text.extend(self.text(memory));
        }
        text
    }

    fn keep(&mut self, entry: Entry, inside: Inside) -> MemoryId {
        let next = self.entries.len() as MemoryId;
        let kept = *self.known.entry(entry).or_insert(next);
        if kept == next {
            self.entries.push((entry, inside));
        }
        kept
    }

    fn keep_array(&mut self, array: Array) -> ArrayId {
        let next = self.arrays.len() as ArrayId;
        let kept = *self.known_arrays.entry(array).or_insert(next);
        if kept == next {
            self.arrays.push(array);
        }
        kept
    }
}

impl Inside {
    /// The same behind a byte.
    fn behind(self, byte: u8) -> Self {
        let Inside { depth, string, escape, .. } = self;
        let (depth, string, escape) = match (string, byte) {
            (true, _) if escape => (depth, true, false),
            (true, b'\\') => (depth, true, true),
            (_, b'"') => (depth, !string, false),
            (false, b'[' | b'{') => (depth + 1, false, false),
            (false, b']' | b'}') => (depth.saturating_sub(1), false, false),
            _ => (depth, string, false),
        };
        Inside { depth, string, escape, ..self }
    }
}

#[cfg(test)]
mod tests;
