//! One text: its places in an automaton that it shares with others.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::automaton::Automaton;
use super::moves::{AnyToken, Walk};
use super::place::Place;
use super::states::States;
use crate::context::{Step, Tokens};
use pyengine_grammar::masks::Mask;

/// The state of one text.
#[derive(Clone)]
pub(crate) struct Parser {
    automaton: Arc<Automaton>,
    /// After each token, and before the first.
    places: Vec<Place>,
    /// The text may only end.
    over: bool,
}

impl Parser {
    /// At the beginning of a text.
    pub fn new(automaton: &Arc<Automaton>) -> Self {
        let mut inner = automaton.lock();
        let first = inner.first();
        let over = inner.is_over(first);
        Self { automaton: automaton.clone(), places: vec![first], over }
    }

    /// Another from here on, which cannot be rolled back behind this place. O(1).
    pub fn fork(&self) -> Self {
        Self { automaton: self.automaton.clone(), places: vec![self.place()], ..*self }
    }

    fn place(&self) -> Place {
        *self.places.last().expect("the first place stays")
    }

    /// Whether the grammar's states have been used up, so that a new automaton is to be preferred.
    pub fn is_retired(&self) -> bool {
        self.automaton.is_retired()
    }

    /// Takes a token. False, and nothing has changed, if it may not come here.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn take(&mut self, token: u32) -> Result<bool> {
        self.take_if(|inner, tokens, place| inner.take(tokens, place, token))
    }

    /// Takes a byte, as a token of its own.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn take_byte(&mut self, byte: u8) -> Result<bool> {
        self.take_if(|inner, _, place| inner.push(place, byte))
    }

    fn take_if(&mut self, next: impl FnOnce(&mut States, &Tokens, Place) -> Option<Place>) -> Result<bool> {
        if self.over {
            return Ok(false);
        }
        let place = self.place();
        let found = self.automaton.work(|inner, tokens| {
            let next = next(inner, tokens, place)?;
            let items = inner.rows.get(next.row).len();
            Some((next, items, inner.is_over(next), items > inner.limits.max_items_in_row))
        })?;
        let Some((next, items, over, too_many)) = found else { return Ok(false) };
        ensure!(!too_many, "a row of the parser has {items} items, which is too many");
        self.over = over;
        self.places.push(next);
        Ok(true)
    }

    /// How many bytes complete the text from here, unless lexemes are in each other's way, which may take more; None where
    /// nothing is known to, or items must differ.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn bytes_to_end(&self) -> Result<Option<u32>> {
        let place = self.place();
        match self.over {
            true => Ok(Some(0)),
            false => self.automaton.work(|inner, tokens| match inner.rules.remembers {
                true => None,
                false => inner.bytes_to_end(tokens, place),
            }),
        }
    }

    /// The shortest completion from here, if one is found.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn completion(&self) -> Result<Option<Vec<Step>>> {
        let place = self.place();
        match self.over {
            true => Ok(Some(Vec::new())),
            false => self.automaton.work(|inner, tokens| inner.completion(tokens, place)),
        }
    }

    /// Whether no text from here ends, as far as the search for a completion goes.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn never_ends(&self) -> Result<bool> {
        let place = self.place();
        self.automaton.work(|inner, tokens| inner.never_ends(tokens, place))
    }

    /// Forgets the last `tokens` tokens.
    pub fn roll_back(&mut self, tokens: usize) {
        if tokens > 0 {
            self.places.truncate(self.places.len().saturating_sub(tokens).max(1));
            self.over = false;
        }
    }

    /// Whether the text may end here.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn is_accepting(&self) -> Result<bool> {
        let place = self.place();
        self.automaton.work(|inner, _| inner.accepts(place))
    }

    /// Whether only an end may come.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The tokens that may come, and the end tokens if the text may end.
    ///
    /// # Errors
    /// The parser has given up, or nothing may come.
    pub fn mask(&self) -> Result<Arc<Mask>> {
        let (place, number) = (self.place(), self.automaton.number);
        self.automaton.work(|inner, tokens| inner.mask(tokens, place, number))?
    }

    /// [`mask`](Self::mask) for a step; whether it was kept is counted.
    ///
    /// # Errors
    /// The parser has given up, or nothing may come.
    pub fn counted_mask(&self) -> Result<Arc<Mask>> {
        let (place, number) = (self.place(), self.automaton.number);
        self.automaton.work(|inner, tokens| {
            let known = inner.known_mask(tokens, place, number);
            tokens.masks().count(known.is_some());
            known.map_or_else(|| inner.mask(tokens, place, number), Ok)
        })?
    }

    /// The mask for a step if it is kept, which is counted.
    pub fn known_mask(&self) -> Option<Arc<Mask>> {
        let (place, number, tokens) = (self.place(), self.automaton.number, &self.automaton.tokens);
        let known = self.automaton.lock_whole()?.known_mask(tokens, place, number);
        known.inspect(|_| tokens.masks().count(true))
    }

    /// The byte that must come; None where there is a choice, or the text may end. The first byte of a special token is
    /// [`TokTrie::SPECIAL_TOKEN_MARKER`](llguidance::toktrie::TokTrie::SPECIAL_TOKEN_MARKER).
    ///
    /// # Errors
    /// The parser has given up.
    pub fn only_byte(&self) -> Result<Option<u8>> {
        let place = self.place();
        self.automaton.work(|inner, _| match inner.accepts(place) {
            true => None,
            false => inner.only_byte(place),
        })
    }

    /// Whether some token begins with these bytes and goes on with such as may come here.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn has_longer(&self, begun: &[u8]) -> Result<bool> {
        let place = self.place();
        self.automaton.work(|inner, tokens| {
            let trie = tokens.text_trie();
            let Some(node) = trie.node(begun) else { return false };
            let mut any = AnyToken(Walk::new(inner, place));
            trie.walk_below(node, &mut any);
            !any.0.found.is_empty()
        })
    }
}

#[cfg(test)]
impl Parser {
    pub(crate) fn lexer_states(&self) -> usize {
        self.automaton.lock().lexer.states()
    }

    pub(crate) fn rows(&self) -> usize {
        self.automaton.lock().rows.len()
    }

    pub(crate) fn poison(&self) {
        let _ = self.automaton.work(|_, _| panic!("as llguidance might"));
    }
}
