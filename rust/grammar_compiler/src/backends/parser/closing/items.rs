//! The shortest items of arrays of different ones: a completion has those that have not come.
//!
//! An item is found once for a grammar, O(1) bytes for one of its text.

use std::sync::Arc;

use super::ends::{Ends, Tail};
use super::piece::Shortest;
use crate::backends::parser::different::unused::TextsByLength;
use crate::backends::parser::different::values::{self, Json};
use crate::backends::parser::lexer::Lexer;
use crate::context::Tokens;

/// Items that are one of some lexemes, the shortest first.
pub(crate) struct Items {
    lexemes: Vec<u32>,
    texts: TextsByLength,
    known: Vec<Item>,
    memory: usize,
}

/// An item.
#[derive(Clone)]
pub(crate) struct Item {
    pub text: Shortest,
    pub value: Arc<Json>,
    /// How its text ends; None where another lexeme is in the way.
    pub tail: Option<Tail>,
}

impl Items {
    pub fn new(lexer: &mut Lexer, lexemes: Vec<u32>) -> Self {
        let texts = TextsByLength::new(lexer.before(&lexemes));
        Self { lexemes, texts, known: Vec::new(), memory: 0 }
    }

    /// The item with this number; None if there are fewer, or no more are found.
    pub fn get(&mut self, at: usize, tokens: &Tokens, lexer: &mut Lexer, ends: &mut Ends) -> Option<&Item> {
        while self.known.len() <= at {
            let (text, _) = self.texts.next(lexer, ends)?;
            self.memory += 10 * text.len() + 128;
            let value = Arc::new(values::whole(&text));
            let tail = Tail::of(&text, &self.lexemes, lexer);
            self.known.push(Item { text: Shortest::of_text(tokens, text), value, tail });
        }
        self.known.get(at)
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + self.texts.memory()
    }
}
