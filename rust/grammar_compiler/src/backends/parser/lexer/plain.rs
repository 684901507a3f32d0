//! Plain characters, those that a JSON string may have as they are: where all of them lead from a state of the lexer.
//!
//! ```text
//!  classes of bytes    a b c ... z │ 0 ... 9 │ é's first byte ...      bytes that no lexeme tells apart are one class
//!  tried               a             0         one sequence a class
//! ```
//!
//! O(classes of bytes) a state; known afterwards.

use std::ops::RangeInclusive;

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Lexer, Move};
use crate::plain::is_plain;

/// What may come behind the first two bytes of a character.
const CONTINUATION: RangeInclusive<u8> = 0x80..=0xbf;
/// Characters of several bytes: the first, the second, and how many come behind.
const UTF8: [(RangeInclusive<u8>, RangeInclusive<u8>, usize); 8] = [
    (0xc2..=0xdf, 0x80..=0xbf, 0),
    (0xe0..=0xe0, 0xa0..=0xbf, 1),
    (0xe1..=0xec, 0x80..=0xbf, 1),
    (0xed..=0xed, 0x80..=0x9f, 1),
    (0xee..=0xef, 0x80..=0xbf, 1),
    (0xf0..=0xf0, 0x90..=0xbf, 2),
    (0xf1..=0xf3, 0x80..=0xbf, 2),
    (0xf4..=0xf4, 0x80..=0x8f, 2),
];

/// Classes that must lead to the same state before the others are expected to.
const PROBE: usize = 2;

/// Which plain characters may come in a state, whichever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    /// Any number, and none leads to another state.
    Free,
    /// At most this many.
    AtMost(usize),
}

/// Where a plain character leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterPlain {
    State(StateID),
    Nothing,
    Differs,
}

/// Where plain characters lead, by state.
pub(super) struct PlainCharacters {
    bytes: Bytes,
    after: FxHashMap<u32, AfterPlain>,
}

/// The bytes of plain characters, one of each class.
struct Bytes {
    ascii: Vec<u8>,
    /// First bytes, each with what may come second and how many come behind.
    longer: Vec<(u8, Vec<u8>, usize)>,
    continuation: Vec<u8>,
}

impl PlainCharacters {
    /// Where nothing is known yet of this lexer's states.
    pub fn new(lexer: &Lexer) -> Self {
        let class = |byte| lexer.byte_class(byte);
        let one_each = |bytes: &mut dyn Iterator<Item = u8>| {
            let mut seen = FxHashSet::default();
            bytes.filter(|byte| seen.insert(class(*byte))).collect::<Vec<u8>>()
        };
        let ascii = one_each(&mut (b' '..=b'~').filter(|byte| !matches!(byte, b'"' | b'\\')));
        let (mut seen, mut longer) = (FxHashSet::default(), Vec::new());
        for (leads, second, behind) in UTF8 {
            let second = one_each(&mut second.clone());
            for lead in leads {
                let classes: Vec<_> = second.iter().map(|byte| class(*byte)).collect();
                if seen.insert((class(lead), classes, behind)) {
                    longer.push((lead, second.clone(), behind));
                }
            }
        }
        let continuation = one_each(&mut CONTINUATION.clone());
        Self { bytes: Bytes { ascii, longer, continuation }, after: FxHashMap::default() }
    }

    /// How many plain characters may come in a state, whichever they are; None if that depends on them. More than `most`
    /// are not told apart.
    pub fn plain(&mut self, lexer: &mut Lexer, mut state: StateID, most: usize) -> Option<Plain> {
        for count in 0..=most {
            match self.after_plain(lexer, state) {
                AfterPlain::State(next) if next == state && count == 0 => return Some(Plain::Free),
                AfterPlain::State(next) => state = next,
                AfterPlain::Nothing => return Some(Plain::AtMost(count)),
                AfterPlain::Differs => return None,
            }
        }
        Some(Plain::AtMost(most))
    }

    /// The state to which most plain ASCII characters lead from this one, if any number of plain characters may come there.
    pub fn mostly_free(&mut self, lexer: &mut Lexer, state: StateID) -> Option<StateID> {
        if lexer.forced(state).is_some() {
            return None;
        }
        let ascii = &self.bytes.ascii;
        let mut counts: FxHashMap<u32, (usize, StateID)> = FxHashMap::default();
        for byte in ascii {
            if let Move::To(next) = lexer.advance(state, *byte) {
                counts.entry(next.as_usize() as u32).or_insert((0, next)).0 += 1;
            }
        }
        let (count, free) = counts.into_values().max_by_key(|(count, next)| (*count, next.as_usize()))?;
        let is_free = count * 2 > ascii.len() && self.plain(lexer, free, 0) == Some(Plain::Free);
        is_free.then_some(free)
    }

    /// Where a plain character leads from a state, if all lead to the same.
    fn after_plain(&mut self, lexer: &mut Lexer, state: StateID) -> AfterPlain {
        if let Some(byte) = lexer.forced(state) {
            let is_plain = is_plain(char::from(byte)) || !byte.is_ascii();
            return if is_plain { AfterPlain::Differs } else { AfterPlain::Nothing };
        }
        let bytes = &self.bytes;
        *self.after.entry(state.as_usize() as u32).or_insert_with(|| after_all(lexer, state, bytes))
    }
}

fn after_all(lexer: &mut Lexer, state: StateID, bytes: &Bytes) -> AfterPlain {
    if let AfterPlain::State(_) = after_each(lexer, state, &bytes.ascii[..bytes.ascii.len().min(PROBE)]) {
        lexer.find_alphabet(state);
    }
    let first = after_each(lexer, state, &bytes.ascii);
    if first == AfterPlain::Differs {
        return first;
    }
    for (lead, second, behind) in &bytes.longer {
        let AfterPlain::State(begun) = after_each(lexer, state, &[*lead]) else {
            if first == AfterPlain::Nothing && lexer.advance(state, *lead) == Move::Nowhere {
                continue;
            }
            return AfterPlain::Differs;
        };
        let mut now = after_each(lexer, begun, second);
        for _ in 0..*behind {
            let AfterPlain::State(next) = now else { return AfterPlain::Differs };
            now = after_each(lexer, next, &bytes.continuation);
        }
        if now != first {
            return AfterPlain::Differs;
        }
    }
    first
}

/// The one state that all these bytes lead to.
fn after_each(lexer: &mut Lexer, state: StateID, bytes: &[u8]) -> AfterPlain {
    let mut one = None;
    for byte in bytes {
        let next = match lexer.advance(state, *byte) {
            Move::To(next) => AfterPlain::State(next),
            Move::Nowhere => AfterPlain::Nothing,
            Move::EndedBefore(_) | Move::EndsWith(_) => return AfterPlain::Differs,
        };
        if *one.get_or_insert(next) != next {
            return AfterPlain::Differs;
        }
    }
    one.unwrap_or(AfterPlain::Differs)
}
