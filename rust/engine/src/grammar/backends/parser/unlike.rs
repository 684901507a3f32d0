//! Masks within arrays of different items: without the tokens after which an item would be one that has come.
//!
//! ```text
//!  ["ab", "a       b"      ends the item as one that has come
//!                  b       nothing but that could end it, if the schema has no longer texts that begin so
//!                  x       leads away from all that have come: nothing behind it is looked at
//! ```
//!
//! A token is followed only as far as its text may become a value that has come. Tokens with a comma may end an item and
//! the next one, and are followed whole.
//!
//! O(values that have come, tokens with a comma that end a lexeme); where no token is left out, the mask is that of other rows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::memory::{NOTHING, Stage, may_become};
use super::moves::Place;
use super::states::States;
use super::values;
use crate::grammar::context::Tokens;
use crate::grammar::masks::Mask;
use crate::grammar::trie::Reader;

/// So many places are tried before an item counts as one that can only become a value that has come.
const MAX_PLACES: usize = 2_000;
/// Bytes that lead away from most values.
const LIKELY: &[u8] = b"a0e_ \"";

impl States {
    /// A mask without the tokens that repeat an item.
    pub(super) fn unlike(&mut self, tokens: &Tokens, place: Place, mask: Arc<Mask>) -> Arc<Mask> {
        if !self.rules.remembers {
            return mask;
        }
        let mut removed = self.repeating(tokens, place);
        let listed = if place.memory == NOTHING { tokens.lists() } else { tokens.separated() };
        let verdict = self.verdicts.of(tokens, &mut self.lexer, place.state);
        let inside = self.verdicts.get(verdict).inside.clone();
        for token in listed.iter().filter(|token| mask.has(**token) && !inside.has(**token)) {
            if self.take(tokens, place, *token).is_none() {
                removed.push(*token);
            }
        }
        removed.retain(|token| mask.has(*token));
        match removed.is_empty() {
            true => mask,
            false => Arc::new(mask.but(&removed, &[], tokens.vocab_size().div_ceil(32))),
        }
    }

    /// The tokens that spell the rest of a value that has come, and those that go on behind it.
    fn repeating(&mut self, tokens: &Tokens, place: Place) -> Vec<u32> {
        let values: Vec<Box<[u8]>> = self.memories.likely(place.memory).into_iter().map(Into::into).collect();
        if values.is_empty() {
            return Vec::new();
        }
        let text = self.memories.text(place.memory);
        let mut walk = Repeats { inner: self, values, places: vec![(place, text)], dead: Vec::new() };
        let trie = tokens.text_trie();
        trie.walk(&mut walk);
        let dead = walk.dead;
        let mut found = Vec::new();
        for node in dead {
            found.extend(trie.token(node));
            trie.walk_below(node, &mut Everything(&mut found));
        }
        found
    }

    /// Whether an item that has begun may still become a value that has not come.
    pub(super) fn may_differ(&mut self, place: Place) -> bool {
        if !matches!(self.memories.stage(place.memory), Stage::Item) {
            return true;
        }
        let values: Vec<Box<[u8]>> = self.memories.likely(place.memory).into_iter().map(Into::into).collect();
        if values.is_empty() {
            return true;
        }
        let mut known: FxHashSet<(Place, Vec<u8>)> = FxHashSet::default();
        let mut open = VecDeque::from([place]);
        while let Some(place) = open.pop_front() {
            let mut text = self.memories.text(place.memory);
            let others = (0..=255).filter(|byte| !LIKELY.contains(byte));
            for byte in LIKELY.iter().copied().chain(others) {
                text.push(byte);
                let likely = may_become(&text, &values);
                text.pop();
                // What leads away is not remembered.
                let from = if likely { place } else { Place { memory: NOTHING, ..place } };
                let Some(next) = self.push(from, byte) else { continue };
                if !likely || !self.goes_on(place, next) {
                    return true;
                }
                let shown =
                    (Place { memory: NOTHING, ..next }, values::whole(&self.memories.text(next.memory)));
                if known.insert(shown) {
                    open.push_back(next);
                }
            }
            if known.len() > MAX_PLACES {
                return false;
            }
        }
        false
    }

    /// The shortest text that ends an item that has begun, or is to come, as none that has come. The shortest values leave
    /// the longer ones to later items, so nothing shorter is lost by it. None where any end will do, or none is found.
    pub(super) fn different(&mut self, place: Place) -> Option<Vec<u8>> {
        if !matches!(self.memories.stage(place.memory), Stage::Item) {
            return None;
        }
        let values: Vec<Box<[u8]>> = self.memories.likely(place.memory).into_iter().map(Into::into).collect();
        if values.is_empty() {
            return None;
        }
        let text = self.memories.text(place.memory);
        // What is still to come, and where it leads to; None where it ends the item.
        let mut open = BinaryHeap::from([(Reverse(0), 0usize)]);
        let mut reached: Vec<(Vec<u8>, Option<Place>)> = vec![(Vec::new(), Some(place))];
        let mut known: FxHashSet<(Place, Vec<u8>)> = FxHashSet::default();
        while let Some((_, at)) = open.pop() {
            let (more, at) = reached[at].clone();
            let Some(at) = at else { return Some(more) };
            if known.len() > MAX_PLACES {
                return None;
            }
            let text = [&text[..], &more].concat();
            let mut found: Vec<(usize, Vec<u8>, Option<Place>)> = Vec::new();
            for end in self.ends_from(at) {
                if values.iter().all(|value| **value != *values::whole(&[&text[..], &end].concat())) {
                    found.push((more.len() + end.len(), [&more[..], &end].concat(), None));
                }
            }
            let mut away: Option<Vec<u8>> = None;
            for byte in LIKELY.iter().copied().chain((0..0xff).filter(|byte| !LIKELY.contains(byte))) {
                let from = Place { memory: NOTHING, ..at };
                let Some(next) = self.push(from, byte).filter(|next| next.row == at.row && next.pending)
                else {
                    continue;
                };
                let longer = [&more[..], &[byte]].concat();
                let begun = [&text[..], &[byte]].concat();
                if !may_become(&begun, &values) {
                    for end in self.ends_from(next) {
                        let whole = [&longer[..], &end].concat();
                        away = away.filter(|known| known.len() <= whole.len()).or(Some(whole));
                    }
                } else if known.insert((next, values::whole(&begun))) {
                    let least = self.ends_from(next).iter().map(|end| end.len()).min().unwrap_or(0);
                    found.push((longer.len() + least, longer, Some(next)));
                }
            }
            found.extend(away.map(|whole| (whole.len(), whole, None)));
            for (length, more, next) in found {
                open.push((Reverse(length), reached.len()));
                reached.push((more, next));
            }
        }
        None
    }

    /// The nearest ends of the lexemes that a place is in, or that may begin there.
    fn ends_from(&mut self, place: Place) -> Vec<Box<[u8]>> {
        self.costs.ends(&mut self.lexer, place.state).iter().map(|end| end.text.clone()).collect()
    }

    /// Whether the item of one place is still the same a byte later.
    fn goes_on(&self, place: Place, next: Place) -> bool {
        self.memories.is_before(place.memory, next.memory)
    }
}

/// A walk over the tokens that go on as a value that has come, behind the end of an item too.
struct Repeats<'a> {
    inner: &'a mut States,
    /// The values, ascending.
    values: Vec<Box<[u8]>>,
    /// Each with its item so far.
    places: Vec<(Place, Vec<u8>)>,
    /// Nodes at which a value has been repeated, or can only be.
    dead: Vec<u32>,
}

impl Reader for Repeats<'_> {
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.places.truncate(depth + 1);
        let (place, text) = &mut self.places[depth];
        let place = *place;
        let in_item = matches!(self.inner.memories.stage(place.memory), Stage::Item);
        if in_item {
            text.push(byte);
            let likely = may_become(text, &self.values);
            text.pop();
            if !likely {
                return false;
            }
        }
        let Some(next) = self.inner.push(place, byte) else {
            let unremembered = Place { memory: NOTHING, ..place };
            if self.inner.push(unremembered, byte).is_some() {
                self.dead.push(node);
            }
            return false;
        };
        let goes_on = match self.inner.memories.stage(next.memory) {
            // An item that has ended here is one that has not come.
            Stage::Outside => false,
            Stage::Ended => !in_item,
            Stage::Item => !in_item || self.inner.goes_on(place, next),
        };
        if !goes_on {
            return false;
        }
        if !self.inner.may_differ(next) {
            self.dead.push(node);
            return false;
        }
        let text = self.inner.memories.text(next.memory);
        self.places.push((next, text));
        true
    }

    fn token(&mut self, _token: u32) {}
}

/// All tokens.
struct Everything<'a>(&'a mut Vec<u32>);

impl Reader for Everything<'_> {
    fn take(&mut self, _depth: usize, _byte: u8, _node: u32) -> bool {
        true
    }

    fn token(&mut self, token: u32) {
        self.0.push(token);
    }
}
