//! How a text goes on from a place: by a byte, by a token, over the end of a lexeme.

use llguidance::derivre::NextByte;
use llguidance::toktrie::TokTrie;

use super::different::memory::{MemoryId, NOTHING, Stage};
use super::lexer::{Move, SetId};
use super::place::Place;
use super::rows::RowId;
use super::states::States;
use crate::context::Tokens;
use crate::trie::Reader;

impl States {
    /// The place before any text.
    pub(super) fn first(&self) -> Place {
        Place { row: 0, state: self.rows.get(0).start, pending: false, memory: NOTHING }
    }

    /// The place after a byte.
    #[inline]
    pub(super) fn push(&mut self, place: Place, byte: u8) -> Option<Place> {
        match self.lexer.advance(place.state, byte) {
            Move::To(state) => {
                let memory = self.memories.with(place.memory, byte);
                Some(Place { state, pending: true, memory, ..place })
            }
            Move::EndedBefore(set) => self.leave(place.row, place.memory, set, Some(byte)),
            Move::EndsWith(set) => {
                let memory = self.memories.with(place.memory, byte);
                self.leave(place.row, memory, set, None)
            }
            Move::Nowhere => None,
        }
    }

    /// The place after a lexeme, and after the byte that begins the next one.
    pub(super) fn leave(
        &mut self,
        row: RowId,
        memory: MemoryId,
        set: SetId,
        byte: Option<u8>,
    ) -> Option<Place> {
        let (row, memory) = self.remembered(row, memory, set)?;
        let start = self.rows.get(row).start;
        let Some(byte) = byte else { return Some(Place { row, state: start, pending: false, memory }) };
        let memory = self.memories.with(memory, byte);
        let state = self.lexer.transition(start, byte);
        if state.is_dead() {
            return None;
        }
        // The byte may be a whole lexeme.
        if self.lexer.is_at_end(state) {
            let set = self.lexer.ended(state);
            return self.leave(row, memory, set, None);
        }
        Some(Place { row, state, pending: true, memory })
    }

    pub(super) fn after(&mut self, row: RowId, set: SetId) -> Option<RowId> {
        self.after_item(row, set, false)
    }

    /// The same; `repeated` says that the lexeme is an item that has come before, which items of arrays must not be.
    fn after_item(&mut self, row: RowId, set: SetId, repeated: bool) -> Option<RowId> {
        if self.rows.made() > self.max_made {
            return None;
        }
        let Self { rules, lexer, rows, .. } = self;
        rows.after(rules, lexer, row, set, repeated)
    }

    /// The row behind a lexeme, and what is remembered there.
    fn remembered(&mut self, row: RowId, memory: MemoryId, set: SetId) -> Option<(RowId, MemoryId)> {
        let next = self.after(row, set)?;
        if !self.rules.remembers {
            return Some((next, NOTHING));
        }
        if self.lexer.skipped(set).is_some() {
            return Some((next, memory));
        }
        let about = self.rows.get(next);
        let (begins, ended) = (about.begins_item, about.ended_item);
        let memories = &mut self.memories;
        Some(match memories.stage(memory) {
            Stage::TooDeep => return None,
            Stage::Whole if ended => match memories.ended(memory) {
                Some(memory) => (next, memory),
                // In another case of the schema it may come.
                None => (self.after_item(row, set, true)?, self.memories.forgotten(memory)),
            },
            // Only other cases of the schema are left, whose items may be equal.
            Stage::Whole => (next, memories.forgotten(memory)),
            Stage::Between if begins => (next, memories.item(memory)),
            Stage::Between => (next, memories.forgotten(memory)),
            Stage::Outside | Stage::Open if begins => (next, memories.array(memory)),
            Stage::Outside | Stage::Open | Stage::Before | Stage::Ended => (next, memory),
        })
    }

    /// The place if the lexeme ended here.
    pub(super) fn flushed(&mut self, place: Place) -> Option<Place> {
        if !place.pending {
            return Some(place);
        }
        match self.lexer.ended(place.state) {
            0 => None,
            set => self.leave(place.row, place.memory, set, None),
        }
    }

    pub(super) fn accepts(&mut self, place: Place) -> bool {
        self.flushed(place).is_some_and(|place| self.rows.get(place.row).accepting)
    }

    /// Whether nothing may follow.
    pub(super) fn is_over(&mut self, place: Place) -> bool {
        !place.pending && !self.rows.get(place.row).goes_on && self.accepts(place)
    }

    /// The place after a token.
    pub(super) fn take(&mut self, tokens: &Tokens, place: Place, token: u32) -> Option<Place> {
        if self.lexer.has_special()
            && let Some(flushed) = self.flushed(place)
            && let Some(lexeme) = self.lexer.special(flushed.state, token)
        {
            let set = self.lexer.intern(&[lexeme]);
            return self.leave(flushed.row, flushed.memory, set, None);
        }
        let bytes = tokens.text_bytes(token);
        if bytes.is_empty() {
            return None;
        }
        let next = bytes.iter().try_fold(place, |place, byte| self.push(place, *byte))?;
        self.may_differ(next).then_some(next)
    }

    /// The byte that may come, if it is the only one.
    pub(super) fn only_byte(&mut self, place: Place) -> Option<u8> {
        let hint = self.lexer.hint(place.state);
        if let NextByte::ForcedByte(byte) = hint {
            return Some(byte);
        }
        let likely = hint.some_bytes();
        let others = (0..=255).filter(|byte| !likely.contains(byte));
        let special = self.lexer.has_special() && self.special_may_come(place);
        let mut allowed = likely.iter().copied().chain(others).filter(|byte| match *byte {
            TokTrie::SPECIAL_TOKEN_MARKER => special,
            byte => self.push(place, byte).is_some(),
        });
        allowed.next().filter(|_| allowed.next().is_none())
    }

    pub(super) fn special_may_come(&mut self, place: Place) -> bool {
        self.flushed(place).is_some_and(|place| self.lexer.special_possible(place.state))
    }
}

/// A walk over tokens from a place.
pub(super) struct Walk<'a> {
    inner: &'a mut States,
    places: Vec<Place>,
    pub found: Vec<u32>,
}

impl<'a> Walk<'a> {
    pub fn new(inner: &'a mut States, place: Place) -> Self {
        Self { inner, places: vec![place], found: Vec::new() }
    }
}

impl Reader for Walk<'_> {
    #[inline]
    fn take(&mut self, depth: usize, byte: u8, _node: u32) -> bool {
        self.places.truncate(depth + 1);
        match self.inner.push(self.places[depth], byte) {
            Some(place) => {
                self.places.push(place);
                true
            }
            None => false,
        }
    }

    #[inline]
    fn token(&mut self, token: u32) {
        self.found.push(token);
    }
}

/// A walk that ends with the first token.
pub(super) struct AnyToken<'a>(pub Walk<'a>);

impl Reader for AnyToken<'_> {
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.0.found.is_empty() && self.0.take(depth, byte, node)
    }

    fn token(&mut self, token: u32) {
        self.0.token(token);
    }
}
