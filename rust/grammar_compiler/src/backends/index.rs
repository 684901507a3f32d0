//! Choices and regexes as a table: one state a row, and a mask is a copy of the row.
//!
//! ```text
//!  state           tokens that may come, and where they lead     mask
//!    0             3 → 1, 17 → 2, 21 → 1, ...                    kept, where they are many
//!    1 (final)     17 → 1                                        written token by token, with the end tokens
//! ```
//!
//! [`build`] makes the table, unless it would be too large. Advancing is O(log tokens of the state); a mask is
//! O(vocabulary / 32) or, where few tokens are allowed, their number.

mod build;

use std::sync::{Arc, OnceLock};

use crate::context::Tokens;
use pyengine_grammar::masks::Mask;
use pyengine_grammar::{Compiled, Grammar};

/// Bytes of forced text that are tried first: for each token that is asked for, and in addition.
const PER_TOKEN: usize = 8;
const BASE_BYTES: usize = 32;

/// A regular language over a vocabulary's tokens.
pub(crate) struct Index {
    table: Arc<Table>,
}

struct Table {
    tokens: Arc<Tokens>,
    states: Vec<Row>,
    memory: usize,
}

struct Row {
    /// Tokens that may come, ascending, each with the state it leads to.
    next: Box<[(u32, u32)]>,
    /// The same as a mask, end tokens in it: made at once where they are many, else when it is first wanted.
    mask: OnceLock<Arc<Mask>>,
    /// Whether the text may end here.
    is_final: bool,
    /// How many tokens the shortest way to an end has.
    to_end: u32,
    /// The token that such a way begins with.
    towards_end: u32,
}

impl Row {
    fn mask(&self, tokens: &Tokens) -> Arc<Mask> {
        self.mask.get_or_init(|| Arc::new(self.listed(tokens))).clone()
    }

    fn listed(&self, tokens: &Tokens) -> Mask {
        let ends = tokens.end_tokens().iter().filter(|_| self.is_final);
        Mask::of(self.next.iter().map(|(token, _)| token).chain(ends).copied().collect())
    }

    fn target(&self, token: u32) -> Option<u32> {
        self.next.binary_search_by_key(&token, |(token, _)| *token).ok().map(|at| self.next[at].1)
    }
}

impl Compiled for Index {
    fn start(&self) -> Box<dyn Grammar> {
        Box::new(State { table: self.table.clone(), path: vec![0], ended: false })
    }

    fn memory(&self) -> usize {
        self.table.memory
    }

    fn backend(&self) -> &'static str {
        "index"
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

struct State {
    table: Arc<Table>,
    /// The states so far; the last is the current one.
    path: Vec<u32>,
    ended: bool,
}

impl State {
    fn now(&self) -> u32 {
        *self.path.last().expect("the first state is never removed")
    }

    fn row(&self) -> &Row {
        self.row_of(self.now())
    }

    fn row_of(&self, state: u32) -> &Row {
        &self.table.states[state as usize]
    }

    /// The byte that every allowed token begins with, if there is one and the text may not end.
    fn forced_byte(&self, state: u32) -> Option<u8> {
        let row = self.row_of(state);
        if row.is_final {
            return None;
        }
        let mut first = row.next.iter().map(|(token, _)| self.table.tokens.text_bytes(*token)[0]);
        let byte = first.next()?;
        first.all(|other| other == byte).then_some(byte)
    }

    /// The forced text, at most `limit` bytes of it, and whether that is all.
    fn forced(&self, limit: usize) -> (Vec<u8>, bool) {
        let mut text = Vec::new();
        let mut state = self.now();
        // A cycle without a way out would have no end, and such states are not in the table.
        while !self.ended
            && let Some(byte) = self.forced_byte(state)
            && let Some(next) = self.after_byte(state, byte)
        {
            if text.len() >= limit {
                return (text, false);
            }
            text.push(byte);
            state = next;
        }
        (text, true)
    }

    /// Appends at most `limit` tokens of a forced text, up to the first that could go on beyond it.
    fn spell(&self, text: &[u8], limit: usize, out: &mut Vec<u32>) {
        let mut tokens = Vec::new();
        self.table.tokens.tokenize(text, &mut tokens);
        let mut state = self.now();
        let mut at = 0;
        for token in tokens.into_iter().take(limit) {
            // Everything that may come here lies in the forced text, or begins in it and ends beyond.
            let left = text.len() - at;
            let row = self.row_of(state);
            let longer = row.next.iter().any(|(token, _)| self.table.tokens.text_bytes(*token).len() > left);
            match row.target(token) {
                Some(next) if !longer => state = next,
                _ => return,
            }
            at += self.table.tokens.text_bytes(token).len();
            out.push(token);
        }
    }

    /// The state after a byte, by the token that consists of it.
    fn after_byte(&self, state: u32, byte: u8) -> Option<u32> {
        self.row_of(state).target(self.table.tokens.byte_token(byte)?)
    }
}

impl Grammar for State {
    fn mask(&mut self) -> Arc<Mask> {
        match self.ended {
            true => self.table.tokens.end_mask().clone(),
            false => self.row().mask(&self.table.tokens),
        }
    }

    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        Some(self.mask())
    }

    fn advance(&mut self, token: u32) -> bool {
        if self.ended {
            return false;
        }
        if let Some(next) = self.row().target(token) {
            self.path.push(next);
            return true;
        }
        self.ended = self.row().is_final && self.table.tokens.end_tokens().binary_search(&token).is_ok();
        self.ended
    }

    fn roll_back(&mut self, mut tokens: usize) {
        if tokens > 0 && self.ended {
            self.ended = false;
            tokens -= 1;
        }
        self.path.truncate((self.path.len().saturating_sub(tokens)).max(1));
    }

    fn is_terminated(&self) -> bool {
        self.ended || (self.row().is_final && self.row().next.is_empty())
    }

    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>) {
        let before = out.len();
        let mut bytes = limit.saturating_mul(PER_TOKEN).saturating_add(BASE_BYTES);
        if limit == 0 {
            return;
        }
        loop {
            let (text, whole) = self.forced(bytes);
            self.spell(&text, limit, out);
            if whole || out.len() - before == limit {
                return;
            }
            out.truncate(before);
            bytes = bytes.saturating_mul(2);
        }
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        let mut tokens = Vec::new();
        if self.ended {
            return Some(tokens);
        }
        let mut state = self.now();
        if self.row_of(state).to_end as usize > limit {
            return None;
        }
        while self.row_of(state).to_end > 0 {
            let token = self.row_of(state).towards_end;
            tokens.push(token);
            state = self.row_of(state).target(token).expect("the way to the end is in the table");
        }
        Some(tokens)
    }

    fn closes_within(&mut self, limit: usize) -> bool {
        self.ended || self.row().to_end as usize <= limit
    }
}

#[cfg(test)]
mod tests;
