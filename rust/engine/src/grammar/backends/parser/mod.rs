//! The parser of grammars that llguidance has compiled: all requests of a grammar share its states.
//!
//! ```text
//!  Automaton (one a grammar, locked)                      Parser (one a request)
//!    lexer     llguidance's, built as it is used            places, one after each token:
//!    rows      Earley's, each made once         ◄────────     row, state of the lexer
//!    verdicts  of the lexer's states
//! ```
//!
//! llguidance's own parser keeps its rows to itself, so that nothing tells that two requests are in the same state. This
//! one follows the same rules byte by byte, on llguidance's grammars and lexer, and gives the same masks: the tests
//! compare them. A place is canonical: requests at equal places may write the same texts, however they came there, and
//! [`MaskCache`](crate::grammar::masks::MaskCache) keeps one mask for all of them.
//!
//! A token is O(its bytes), a mask that is kept a look-up. A new mask costs the ways out of the lexer's state.

mod lexer;
mod rows;
mod rules;
mod verdicts;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail, ensure};
use llguidance::api::ParserLimits;
use llguidance::derivre::{NextByte, StateID};
use llguidance::earley::CGrammar;
use llguidance::toktrie::TokTrie;

use crate::grammar::context::Tokens;
use crate::grammar::masks::{Mask, State};
use crate::grammar::trie::Reader;
use lexer::{Lexer, Move, SetId};
use rows::{RowId, Rows};
use rules::Rules;
use verdicts::Verdicts;

pub(crate) use lexer::SkippedOnce;

/// An automaton that has grown by more bytes is left to the requests that have it; others get a new one.
const MAX_GROWTH: usize = 16 << 20;
/// A lexeme of more weight has its automaton built when the grammar is compiled.
const HEAVY_LEXEME: u32 = 1000;
/// No text is pending, in the key of a mask.
const NOTHING_PENDING: u32 = u32::MAX;

/// A grammar's states so far.
pub(crate) struct Automaton {
    number: u64,
    tokens: Arc<Tokens>,
    inner: Mutex<Inner>,
    /// No more requests are to get it: it has given up, or holds too much.
    retired: AtomicBool,
}

struct Inner {
    rules: Arc<Rules>,
    lexer: Lexer,
    rows: Rows,
    verdicts: Verdicts,
    limits: ParserLimits,
    /// How many items the call may make in all.
    max_made: usize,
    /// How many bytes it may hold.
    max_bytes: usize,
}

/// Where a text has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    row: RowId,
    state: StateID,
    /// A lexeme has begun.
    pending: bool,
}

impl Automaton {
    /// The automaton of a grammar, with its first state.
    ///
    /// # Errors
    /// Its lexer is too large.
    pub fn new(
        tokens: &Arc<Tokens>,
        grammar: &Arc<CGrammar>,
        limits: &ParserLimits,
        once: &SkippedOnce,
    ) -> Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let rules = Arc::new(Rules::new(grammar));
        let mut lexer = Lexer::new(grammar, limits, once)?;
        let rows = Rows::new(&rules, &mut lexer);
        let mut inner = Inner {
            rules,
            lexer,
            rows,
            verdicts: Verdicts::default(),
            limits: limits.clone(),
            max_made: usize::MAX,
            max_bytes: 0,
        };
        inner.max_bytes = inner.memory() + MAX_GROWTH;
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            tokens: tokens.clone(),
            inner: Mutex::new(inner),
            retired: AtomicBool::new(false),
        })
    }

    /// Builds the lexer's states of large lexemes.
    ///
    /// # Errors
    /// That takes too much work.
    pub fn prepare(&self) -> Result<()> {
        let mut inner = self.lock();
        let fuel = inner.limits.initial_lexer_fuel;
        inner.lexer.refuel(fuel);
        let Inner { lexer, verdicts, .. } = &mut *inner;
        for start in lexer.heavy(HEAVY_LEXEME) {
            verdicts.of(&self.tokens, lexer, start);
        }
        ensure!(lexer.error().is_none(), "its texts need too large an automaton");
        Ok(())
    }

    /// Whether no more requests are to get it.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// About how many bytes it holds.
    pub fn memory(&self) -> usize {
        self.lock().memory()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the states, within the limits of one mask. A lexer that has given up is of no more use to any request.
    fn work<T>(&self, work: impl FnOnce(&mut Inner, &Tokens) -> T) -> Result<T> {
        let inner = self.inner.lock();
        // A panic may have left it broken.
        let mut inner =
            inner.map_err(|_| anyhow!("the grammar's parser panicked")).inspect_err(|_| self.retire())?;
        inner.max_made = inner.rows.made() + inner.limits.step_max_items;
        let fuel = inner.limits.step_lexer_fuel;
        inner.lexer.refuel(fuel);
        let value = work(&mut inner, &self.tokens);
        let checked = inner.check();
        if inner.lexer.error().is_some() || inner.memory() > inner.max_bytes {
            self.retire();
        }
        checked.map(|()| value)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    /// # Errors
    /// The work went beyond a limit, and its result may be wrong.
    fn check(&self) -> Result<()> {
        if let Some(error) = self.lexer.error() {
            bail!("lexer error: {error}");
        }
        let limit = self.limits.step_max_items;
        ensure!(self.rows.made() <= self.max_made, "parser error: too many items (limit {limit})");
        Ok(())
    }

    fn memory(&self) -> usize {
        self.rules.memory() + self.lexer.memory() + self.rows.memory() + self.verdicts.memory()
    }

    /// The place after a byte.
    #[inline]
    fn push(&mut self, place: Place, byte: u8) -> Option<Place> {
        match self.lexer.advance(place.state, byte) {
            Move::To(state) => Some(Place { state, pending: true, ..place }),
            Move::EndedBefore(set) => self.leave(place.row, set, Some(byte)),
            Move::EndsWith(set) => self.leave(place.row, set, None),
            Move::Nowhere => None,
        }
    }

    /// The place after a lexeme, and after the byte that begins the next one.
    fn leave(&mut self, row: RowId, set: SetId, byte: Option<u8>) -> Option<Place> {
        let row = self.after(row, set)?;
        let start = self.rows.get(row).start;
        let Some(byte) = byte else { return Some(Place { row, state: start, pending: false }) };
        let state = self.lexer.transition(start, byte);
        if state.is_dead() {
            return None;
        }
        // The byte may be a whole lexeme.
        if self.lexer.is_at_end(state) {
            let set = self.lexer.ended(state);
            return self.leave(row, set, None);
        }
        Some(Place { row, state, pending: true })
    }

    fn after(&mut self, row: RowId, set: SetId) -> Option<RowId> {
        if self.rows.made() > self.max_made {
            return None;
        }
        let Self { rules, lexer, rows, .. } = self;
        rows.after(rules, lexer, row, set)
    }

    /// The place if the lexeme ended here.
    fn flushed(&mut self, place: Place) -> Option<Place> {
        if !place.pending {
            return Some(place);
        }
        match self.lexer.ended(place.state) {
            0 => None,
            set => self.leave(place.row, set, None),
        }
    }

    fn accepts(&mut self, place: Place) -> bool {
        self.flushed(place).is_some_and(|place| self.rows.get(place.row).accepting)
    }

    /// Whether nothing may follow.
    fn is_over(&mut self, place: Place) -> bool {
        !place.pending && !self.rows.get(place.row).goes_on && self.accepts(place)
    }

    /// The place after a token.
    fn take(&mut self, tokens: &Tokens, place: Place, token: u32) -> Option<Place> {
        if self.lexer.has_special()
            && let Some(flushed) = self.flushed(place)
            && let Some(lexeme) = self.lexer.special(flushed.state, token)
        {
            let set = self.lexer.intern(&[lexeme]);
            return self.leave(flushed.row, set, None);
        }
        let bytes = tokens.text_bytes(token);
        if bytes.is_empty() {
            return None;
        }
        bytes.iter().try_fold(place, |place, byte| self.push(place, *byte))
    }

    /// The key of a place's mask.
    fn key(&mut self, tokens: &Tokens, place: Place, automaton: u64) -> State {
        self.verdicts.of(tokens, &mut self.lexer, place.state);
        self.known_key(place, automaton).expect("the verdict was just found")
    }

    /// The same if the verdict is known.
    fn known_key(&mut self, place: Place, automaton: u64) -> Option<State> {
        let verdict = self.verdicts.known(place.state)?;
        let end = if place.pending { self.lexer.ended(place.state) } else { NOTHING_PENDING };
        Some(State { automaton, row: place.row, verdict, end })
    }

    /// The tokens that may come, end tokens too.
    fn mask(&mut self, tokens: &Tokens, place: Place, verdict: u32) -> Vec<u32> {
        // Ways out are walked with the parser, which they are a part of.
        let verdicts = std::mem::take(&mut self.verdicts);
        let said = verdicts.get(verdict);
        let mut mask = said.inside.to_vec();
        for way in said.ways_out.iter() {
            let Some(behind) = self.leave(place.row, way.set, way.byte) else { continue };
            let trie = said.trie(tokens);
            let add = |mask: &mut [u32], token: u32| mask[token as usize / 32] |= 1 << (token % 32);
            match way.after(trie) {
                Some(after) => {
                    after.ended.iter().for_each(|token| add(&mut mask, *token));
                    let mut walk = Walk::new(self, behind);
                    after.trie.walk(&mut walk);
                    for list in walk.found {
                        after.lists[list as usize].iter().for_each(|token| add(&mut mask, *token));
                    }
                }
                None => {
                    for node in way.nodes() {
                        if let Some(token) = trie.token(*node) {
                            add(&mut mask, token);
                        }
                        let mut walk = Walk::new(self, behind);
                        trie.walk_below(*node, &mut walk);
                        walk.found.iter().for_each(|token| add(&mut mask, *token));
                    }
                }
            }
        }
        self.verdicts = verdicts;
        if let Some(flushed) = self.flushed(place) {
            if self.lexer.has_special() {
                self.lexer.add_special(flushed.state, &mut mask);
            }
            if self.rows.get(flushed.row).accepting {
                for token in tokens.end_tokens() {
                    mask[*token as usize / 32] |= 1 << (token % 32);
                }
            }
        }
        mask
    }

    /// The byte that may come, if it is the only one. `tried` grows by the tried bytes.
    fn only_byte(&mut self, place: Place, tried: &mut usize) -> Option<u8> {
        let hint = self.lexer.hint(place.state);
        if let NextByte::ForcedByte(byte) = hint {
            return Some(byte);
        }
        let likely = hint.some_bytes();
        let others = (0..=255).filter(|byte| !likely.contains(byte));
        let special = self.lexer.has_special() && self.special_may_come(place);
        let mut allowed = likely.iter().copied().chain(others).filter(|byte| {
            *tried += 1;
            match *byte {
                TokTrie::SPECIAL_TOKEN_MARKER => special,
                byte => self.push(place, byte).is_some(),
            }
        });
        allowed.next().filter(|_| allowed.next().is_none())
    }

    fn special_may_come(&mut self, place: Place) -> bool {
        self.flushed(place).is_some_and(|place| self.lexer.special_possible(place.state))
    }
}

/// A walk over tokens from a place.
struct Walk<'a> {
    inner: &'a mut Inner,
    places: Vec<Place>,
    found: Vec<u32>,
}

impl<'a> Walk<'a> {
    fn new(inner: &'a mut Inner, place: Place) -> Self {
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
struct AnyToken<'a>(Walk<'a>);

impl Reader for AnyToken<'_> {
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.0.found.is_empty() && self.0.take(depth, byte, node)
    }

    fn token(&mut self, token: u32) {
        self.0.token(token);
    }
}

/// The state of one text.
#[derive(Clone)]
pub(crate) struct Parser {
    automaton: Arc<Automaton>,
    /// After each token, and before the first.
    places: Vec<Place>,
    /// The text may only end.
    over: bool,
    /// How many items the rows have that its text was tried with.
    items: usize,
}

impl Parser {
    /// At the beginning of a text.
    pub fn new(automaton: &Arc<Automaton>) -> Self {
        let mut inner = automaton.lock();
        let first = Place { row: 0, state: inner.rows.get(0).start, pending: false };
        let over = inner.is_over(first);
        Self { automaton: automaton.clone(), places: vec![first], over, items: 0 }
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

    /// How many items the rows have that it was taken or tried to, each time: the same on every machine, whatever other
    /// texts have made known.
    pub fn items(&self) -> usize {
        self.items
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

    fn take_if(&mut self, next: impl FnOnce(&mut Inner, &Tokens, Place) -> Option<Place>) -> Result<bool> {
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
        if next.row != place.row {
            self.items += items;
        }
        self.over = over;
        self.places.push(next);
        Ok(true)
    }

    /// How many of these tokens may come, one after the other.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn count(&mut self, tokens: &[u32]) -> Result<usize> {
        if self.over {
            return Ok(0);
        }
        let mut place = self.place();
        let (count, items) = self.automaton.work(|inner, all| {
            let mut items = 0;
            let fits = |token: &&u32| {
                let Some(next) = inner.take(all, place, **token) else { return false };
                if next.row != place.row {
                    items += inner.rows.get(next.row).len();
                }
                place = next;
                true
            };
            (tokens.iter().take_while(fits).count(), items)
        })?;
        self.items += items;
        Ok(count)
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
        let cache = self.automaton.tokens.masks();
        self.automaton.work(|inner, tokens| {
            let key = inner.key(tokens, place, number);
            if let Some(mask) = cache.get(&key) {
                return Ok(mask);
            }
            let words = inner.mask(tokens, place, key.verdict);
            inner.check()?;
            ensure!(words.iter().any(|word| *word != 0), "no text matches it");
            Ok(cache.insert(key, &words))
        })?
    }

    /// The mask if it is kept.
    pub fn known_mask(&self) -> Option<Arc<Mask>> {
        let (place, number) = (self.place(), self.automaton.number);
        let key = self.automaton.inner.lock().ok()?.known_key(place, number)?;
        self.automaton.tokens.masks().get(&key)
    }

    /// The byte that must come; None where there is a choice, or the text may end. The first byte of a special token is
    /// [`TokTrie::SPECIAL_TOKEN_MARKER`]. `tried` grows by the tried bytes.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn only_byte(&self, tried: &mut usize) -> Result<Option<u8>> {
        let place = self.place();
        self.automaton.work(|inner, _| match inner.accepts(place) {
            true => None,
            false => inner.only_byte(place, tried),
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

    pub(crate) fn poison(&self) {
        let _ = self.automaton.work(|_, _| panic!("as llguidance might"));
    }
}

#[cfg(test)]
mod tests;
