//! Walks over tokens from a state of the lexer: those that stay in the lexeme, and the ways out of the others.
//!
//! ```text
//!  search       from one state: every token
//!  difference   from two states, down to where they lead to the same: a key that may be any but `title` differs from any
//!               key in t, ti, tit, titl, title and title"
//! ```

use llguidance::derivre::StateID;

use super::ways::Texts;
use super::{Lexer, Move, SetId};
use crate::context::Tokens;
use crate::trie::{Kinds, Reader, Trie};

/// Most tokens have fewer bytes.
const MOST_TOKENS: usize = 16;

/// The lexemes that have ended, and the byte that begins the next one; None where the last byte was the lexeme's.
pub(super) type Way = (SetId, Option<u8>);

/// A way out, and the nodes of a trie at which it is taken.
pub(super) struct FoundWay {
    pub way: Way,
    pub nodes: Vec<u32>,
    pub texts: Texts,
}

/// What a walk has found.
#[derive(Default)]
pub(super) struct Found {
    /// Texts that stay in the lexeme.
    pub inside: Vec<u32>,
    ways_out: Vec<(Way, u32)>,
}

impl Found {
    #[cold]
    fn leave(&mut self, way: Way, node: u32) {
        self.ways_out.push((way, node));
    }

    /// The ways out, of nodes of this trie.
    pub fn ways_out(mut self, texts: &Texts) -> Vec<FoundWay> {
        // A walk comes to nodes in ascending order.
        self.ways_out.sort_unstable();
        let same = self.ways_out.chunk_by(|(one, _), (other, _)| one == other);
        let found = same.map(|nodes| FoundWay {
            way: nodes[0].0,
            nodes: nodes.iter().map(|(_, node)| *node).collect(),
            texts: texts.clone(),
        });
        found.collect()
    }
}

/// A walk over tokens from a state of the lexer.
pub(super) struct Search<'a> {
    lexer: &'a mut Lexer,
    states: Vec<StateID>,
    found: Found,
}

impl<'a> Search<'a> {
    pub fn new(lexer: &'a mut Lexer, state: StateID) -> Self {
        let mut states = Vec::with_capacity(MOST_TOKENS);
        states.push(state);
        Self { lexer, states, found: Found::default() }
    }

    /// The tokens that stay in the lexeme, and the ways out of the others.
    pub fn found(mut self, tokens: &Tokens, texts: &Texts) -> (Vec<u32>, Vec<FoundWay>) {
        let inside = texts.tokens(tokens, std::mem::take(&mut self.found.inside));
        (inside, self.found.ways_out(texts))
    }
}

impl Reader for Search<'_> {
    #[inline(always)]
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        let way = match self.lexer.advance(self.states[depth], byte) {
            Move::To(state) => {
                match self.states.get_mut(depth + 1) {
                    Some(next) => *next = state,
                    None => self.states.push(state),
                }
                return true;
            }
            Move::Nowhere => return false,
            Move::EndedBefore(set) => (set, Some(byte)),
            Move::EndsWith(set) => (set, None),
        };
        self.found.leave(way, node);
        false
    }

    #[inline(always)]
    fn token(&mut self, text: u32) {
        self.found.inside.push(text);
    }

    #[inline]
    fn takes_all(&mut self, depth: usize) -> Kinds {
        self.lexer.loops(self.states[depth])
    }

    #[inline]
    fn only(&mut self, depth: usize) -> Option<u8> {
        self.lexer.forced(self.states[depth])
    }
}

/// A walk over all tokens from two states.
pub(super) struct Difference<'a> {
    lexer: &'a mut Lexer,
    trie: &'a Trie,
    /// Where the bytes so far lead from the first state, and from the other.
    states: Vec<(StateID, Option<StateID>)>,
    found: Found,
    /// The tokens of which the states may not say the same.
    other: Vec<u32>,
}

impl<'a> Difference<'a> {
    pub fn new(lexer: &'a mut Lexer, trie: &'a Trie, state: StateID, from: StateID) -> Self {
        Self { lexer, trie, states: vec![(state, Some(from))], found: Found::default(), other: Vec::new() }
    }

    /// What the first state says of the tokens of which the other may not say the same, and these, ascending.
    pub fn found(mut self) -> (Found, Vec<u32>) {
        self.other.sort_unstable();
        (self.found, self.other)
    }
}

impl Reader for Difference<'_> {
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.states.truncate(depth + 1);
        let (state, from) = self.states[depth];
        let (next, other) =
            (self.lexer.advance(state, byte), from.map(|from| self.lexer.advance(from, byte)));
        if other == Some(next) {
            return false;
        }
        let way = match next {
            Move::To(state) => {
                let other = match other {
                    Some(Move::To(other)) => Some(other),
                    _ => None,
                };
                self.states.push((state, other));
                return true;
            }
            Move::Nowhere => None,
            Move::EndedBefore(set) => Some((set, Some(byte))),
            Move::EndsWith(set) => Some((set, None)),
        };
        way.into_iter().for_each(|way| self.found.leave(way, node));
        self.other.extend(self.trie.token(node));
        self.trie.walk_below(node, &mut self.other);
        false
    }

    fn token(&mut self, token: u32) {
        self.found.inside.push(token);
        self.other.push(token);
    }
}
