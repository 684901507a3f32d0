//! Masks within arrays of different items: without the tokens after which an item would be one that has come.
//!
//! ```text
//!  ["ab", "a       b"      ends the item as one that has come
//!                  b       nothing but that could end it, if the schema has no longer texts that begin so
//!                  x       leads away from all that have come: nothing behind it is looked at
//! ```
//!
//! A token is followed only as far as an item may become one that has come, the item around it too. Tokens with a comma may
//! end an item and the next one, and those with a member and the end of its object may write a key again: both are followed
//! whole.
//!
//! O(item and values that have come, tokens with a comma that end a lexeme); where no token is left out, the mask is that
//! of other rows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::memory::NOTHING;
use super::values::Begun;
use crate::backends::parser::lexer::Move;
use crate::backends::parser::place::Place;
use crate::backends::parser::states::States;
use crate::context::Tokens;
use crate::trie::Reader;
use pyengine_grammar::masks::Mask;

/// Places that are tried, besides one for each byte of what has come, before an item counts as one that can only become a
/// value that has come.
const MAX_PLACES: usize = 2_000;
const MAX_PLACES_IN_ALL: usize = 20_000;
/// Bytes that lead away from most values, or end one.
const LIKELY: &[u8] = b"a0e_ \"}],";
/// Ends of a lexeme that are tried though they lead away from no value.
const MAX_ENDS: usize = 8;

impl States {
    /// A mask without the tokens that repeat an item.
    pub(crate) fn unlike(&mut self, tokens: &Tokens, place: Place, mask: Arc<Mask>) -> Arc<Mask> {
        if !self.rules.remembers {
            return mask;
        }
        let mut removed = self.repeating(tokens, place);
        let listed = match place.memory {
            NOTHING => [tokens.lists(), &[]],
            _ => [tokens.separated(), tokens.members()],
        };
        let deep = if self.memories.is_deep(place.memory) { tokens.text_tokens() } else { &[] };
        let opens = |token: &&u32| tokens.text_bytes(**token).iter().any(|byte| b"[{".contains(byte));
        let listed = listed.into_iter().flatten().chain(deep.iter().filter(opens));
        let verdict = self.verdicts.of(tokens, &mut self.lexer, place.state);
        let inside = self.verdicts.get(verdict).inside.clone();
        for token in listed.filter(|token| mask.has(**token) && !inside.has(**token)) {
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
        if self.memories.repeats(place.memory).is_empty() {
            return Vec::new();
        }
        let mut walk = Repeats { inner: self, places: vec![place], dead: Vec::new() };
        let trie = tokens.text_trie();
        trie.walk(&mut walk);
        let dead = walk.dead;
        let mut found = Vec::new();
        for node in dead {
            found.extend(trie.token(node));
            trie.walk_below(node, &mut found);
        }
        found
    }

    /// Whether the items that have begun may still become values that have not come.
    pub(crate) fn may_differ(&mut self, place: Place) -> bool {
        if !self.memories.may_repeat(place.memory) {
            return true;
        }
        let repeats = self.memories.repeats(place.memory);
        let bytes: usize =
            repeats.iter().map(|repeat| repeat.values.iter().map(|value| value.size()).sum::<usize>()).sum();
        let most = (MAX_PLACES + bytes).min(MAX_PLACES_IN_ALL);
        let mut known: FxHashSet<(Place, Vec<Begun>)> = FxHashSet::default();
        let mut open = VecDeque::from([place]);
        while let Some(place) = open.pop_front() {
            let others = (0..=255).filter(|byte| !LIKELY.contains(byte));
            for byte in LIKELY.iter().copied().chain(others) {
                let Some(next) = self.push(place, byte) else { continue };
                if !self.memories.may_repeat(next.memory) {
                    return true;
                }
                if known.insert(self.shown(next)) {
                    open.push_back(next);
                }
            }
            if known.len() > most {
                return false;
            }
        }
        false
    }

    /// A place with what its items say: texts that are spelled in other ways lead on alike.
    fn shown(&self, place: Place) -> (Place, Vec<Begun>) {
        let begun = self.memories.repeats(place.memory).into_iter().map(|repeat| repeat.begun).collect();
        (Place { memory: NOTHING, ..place }, begun)
    }

    /// How a lexeme may end where an item may still become one that has come: the shortest text that leads away from all of
    /// those, as the shortest values leave the longer ones to later items, or some texts that do not, where none does. Nothing
    /// where the lexeme may end as it does soonest.
    pub(crate) fn different(&mut self, place: Place) -> Vec<Vec<u8>> {
        if !self.memories.may_repeat(place.memory) {
            return Vec::new();
        }
        let repeats = self.memories.repeats(place.memory);
        let leads_away = |more: &[u8], ended: bool| !repeats.iter().any(|repeat| repeat.goes_on(more, ended));
        // What is still to come, and where it leads to; None where it ends the lexeme.
        let mut open = BinaryHeap::from([(Reverse(0), 0usize)]);
        let mut reached: Vec<(Vec<u8>, Option<Place>)> = vec![(Vec::new(), Some(place))];
        let mut known: FxHashSet<(Place, Vec<Begun>)> = FxHashSet::default();
        let mut ends: Vec<Vec<u8>> = Vec::new();
        while let Some((_, at)) = open.pop() {
            let (more, at) = reached[at].clone();
            let Some(at) = at else {
                return if more.is_empty() { Vec::new() } else { vec![more] };
            };
            if known.len() > MAX_PLACES {
                break;
            }
            let mut found: Vec<(usize, Vec<u8>, Option<Place>)> = Vec::new();
            for end in self.ends_from(at) {
                let whole = [&more[..], &end].concat();
                if leads_away(&whole, true) {
                    found.push((whole.len(), whole, None));
                } else if ends.len() < MAX_ENDS && !whole.is_empty() && !ends.contains(&whole) {
                    ends.push(whole);
                }
            }
            let mut away: Option<Vec<u8>> = None;
            for byte in LIKELY.iter().copied().chain((0..0xff).filter(|byte| !LIKELY.contains(byte))) {
                let ends_here = match self.lexer.advance(at.state, byte) {
                    Move::To(_) => false,
                    Move::EndsWith(_) => true,
                    Move::EndedBefore(_) | Move::Nowhere => continue,
                };
                let Some(next) = self.push(at, byte) else { continue };
                // More white space leads to no other value.
                if byte.is_ascii_whitespace() && self.shown(next).1 == self.shown(at).1 {
                    continue;
                }
                let longer = [&more[..], &[byte]].concat();
                if ends_here {
                    if leads_away(&longer, true) {
                        found.push((longer.len(), longer, None));
                    } else if ends.len() < MAX_ENDS && !ends.contains(&longer) {
                        ends.push(longer);
                    }
                    continue;
                }
                if leads_away(&longer, false) {
                    for end in self.ends_from(next) {
                        let whole = [&longer[..], &end].concat();
                        away = away.filter(|known| known.len() <= whole.len()).or(Some(whole));
                    }
                } else if known.insert(self.shown(next)) {
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
        ends
    }

    /// The nearest ends of the lexemes that a place is in, or that may begin there.
    fn ends_from(&mut self, place: Place) -> Vec<Vec<u8>> {
        let ends = self.costs.ends.of(&mut self.lexer, place.state);
        ends.iter().map(|end| end.text().to_vec()).collect()
    }
}

/// A walk over the tokens that go on as a value that has come, behind the end of an item too.
struct Repeats<'a> {
    inner: &'a mut States,
    places: Vec<Place>,
    /// Nodes at which a value has been repeated, or can only be.
    dead: Vec<u32>,
}

impl Reader for Repeats<'_> {
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.places.truncate(depth + 1);
        let place = self.places[depth];
        let Some(next) = self.inner.push(place, byte) else {
            let unremembered = Place { memory: NOTHING, ..place };
            if self.inner.push(unremembered, byte).is_some() {
                self.dead.push(node);
            }
            return false;
        };
        if self.inner.memories.repeats(next.memory).is_empty() {
            return false;
        }
        if !self.inner.may_differ(next) {
            self.dead.push(node);
            return false;
        }
        self.places.push(next);
        true
    }

    fn token(&mut self, _token: u32) {}
}
