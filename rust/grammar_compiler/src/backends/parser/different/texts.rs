//! The shortest texts from a state of the lexer on, in order of their lengths.
//!
//! ```text
//!  "  ─┬─ "           2 bytes     a text is one byte more than a shorter one, and costs that and the nearest end from
//!      ├─ a ─┬─ "     3           there; of what costs the same, the longest goes on first
//!      │     └─ a ─ "
//!      └─ b ─ ...                 the next byte of a text is tried when the one before it has been
//! ```
//!
//! A best-first search over texts, in which O(bytes) are tried for a text that is found.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use llguidance::derivre::StateID;

use super::values::{self, Json};
use crate::backends::parser::closing::ends::Ends;
use crate::backends::parser::lexer::{Lexer, Move, NO_SET, SetId};

/// Bytes that are tried for one text.
const MAX_TRIED: usize = 200_000;
/// Beginnings of texts that are kept.
const MAX_NODES: usize = 500_000;

/// The texts from one state.
pub(crate) struct TextsByLength {
    known: Vec<Text>,
    nodes: Vec<Node>,
    open: BinaryHeap<(Reverse<u32>, u32, Reverse<u32>, Next)>,
    made: u32,
}

/// A whole text.
#[derive(Clone)]
pub(super) struct Text {
    pub bytes: Arc<[u8]>,
    pub value: Arc<Json>,
    pub set: SetId,
}

/// The beginning of a text.
struct Node {
    state: StateID,
    before: u32,
    byte: u8,
    depth: u32,
}

/// What is tried next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The text ends here, or with the byte; these lexemes have ended.
    End { node: u32, last: Option<u8>, set: SetId },
    /// The text goes on with this byte: a number in the order of [`byte`].
    Byte { node: u32, number: u8 },
}

/// All bytes but that of special tokens, the plain characters first.
fn byte(number: u8) -> u8 {
    match number {
        0..=94 => b' ' + number,
        95..=126 => number - 95,
        _ => number,
    }
}

impl TextsByLength {
    /// The texts from `state` on.
    pub fn new(state: StateID) -> Self {
        let first = Node { state, before: 0, byte: 0, depth: 0 };
        let mut made = Self { known: Vec::new(), nodes: vec![first], open: BinaryHeap::new(), made: 0 };
        made.push(0, 0, Next::Byte { node: 0, number: 0 });
        made
    }

    /// The text with this number; None if there are fewer, or no more are found.
    pub(super) fn get(&mut self, at: usize, lexer: &mut Lexer, ends: &mut Ends) -> Option<Text> {
        while self.known.len() <= at {
            let (text, set) = self.next(lexer, ends)?;
            self.known.push(Text { value: Arc::new(values::whole(&text)), bytes: text.into(), set });
        }
        self.known.get(at).cloned()
    }

    /// The next text, and the lexemes that have ended with it; None where there is no more, or none is found.
    fn next(&mut self, lexer: &mut Lexer, ends: &mut Ends) -> Option<(Vec<u8>, SetId)> {
        for _ in 0..MAX_TRIED {
            let (Reverse(cost), depth, _, next) = self.open.pop()?;
            match next {
                Next::End { node, last, set } => return Some((self.text(node, last), set)),
                Next::Byte { .. } if self.nodes.len() >= MAX_NODES || lexer.is_near_limits() => return None,
                Next::Byte { node, number } => {
                    if number == 0 {
                        let set = lexer.ended(self.nodes[node as usize].state);
                        if set != NO_SET {
                            self.push(depth, depth, Next::End { node, last: None, set });
                        }
                    }
                    self.go_on(lexer, ends, node, byte(number));
                    if number < 254 {
                        self.push(cost, depth, Next::Byte { node, number: number + 1 });
                    }
                }
            }
        }
        None
    }

    /// The texts that go on with a byte.
    fn go_on(&mut self, lexer: &mut Lexer, ends: &mut Ends, before: u32, byte: u8) {
        let Node { state, depth, .. } = self.nodes[before as usize];
        let depth = depth + 1;
        match lexer.advance(state, byte) {
            Move::To(state) => {
                let nearest = ends.of(lexer, state).iter().map(|end| end.text().len() as u32).min();
                if let Some(left) = nearest {
                    let node = self.nodes.len() as u32;
                    self.nodes.push(Node { state, before, byte, depth });
                    self.push(depth + left, depth, Next::Byte { node, number: 0 });
                }
            }
            Move::EndsWith(set) => {
                self.push(depth, depth, Next::End { node: before, last: Some(byte), set });
            }
            Move::EndedBefore(_) | Move::Nowhere => {}
        }
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        let known: usize = self.known.iter().map(|text| 128 + 10 * text.bytes.len()).sum();
        known + self.nodes.len() * size_of::<Node>() + self.open.len() * 24
    }

    fn push(&mut self, cost: u32, depth: u32, next: Next) {
        self.made += 1;
        self.open.push((Reverse(cost), depth, Reverse(self.made), next));
    }

    fn text(&self, mut node: u32, last: Option<u8>) -> Vec<u8> {
        let mut text: Vec<u8> = last.into_iter().collect();
        while node > 0 {
            let Node { before, byte, .. } = self.nodes[node as usize];
            text.push(byte);
            node = before;
        }
        text.reverse();
        text
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_has_a_number() {
        let mut all: Vec<u8> = (0..255).map(super::byte).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..255));
    }
}
