//! Rows and states of the lexer that texts come to first: they are made when the grammar is compiled.
//!
//! ```text
//!  {"name": ─► "      bytes that must come, one after the other
//!              └► ", "age": ─► 0 ...      where there is a choice: the bytes that the lexer names, and ends of values
//! ```
//!
//! A mask's walk over the tokens comes to the same states, and makes those that are not there. Making them takes as long as
//! the rest of a literal's mask; here they take no tokens and no masks, and the first masks are left with their own work.
//!
//! O(1) bytes, items and work of the lexer.

use std::collections::VecDeque;

use anyhow::Result;
use llguidance::derivre::NextByte;
use rustc_hash::FxHashSet;

use super::automaton::Automaton;
use super::states::States;

/// So many bytes are followed, ...
const MAX_BYTES: usize = 1_000;
/// ... as long as they have made no more items of rows, ...
const MAX_ITEMS: usize = 2_000;
/// ... and taken no more of the lexer's fuel.
const MAX_FUEL: u64 = 2_000;
/// The ends of a string and of a number, which are choices in all of their states.
const ENDS: &[u8] = b"\",}";

impl Automaton {
    /// Makes them, those behind fewer choices first.
    ///
    /// # Errors
    /// The parser has given up, and requests get another automaton.
    pub fn look_ahead(&self) -> Result<()> {
        self.work(|states, _| states.look_ahead())
    }
}

impl States {
    fn look_ahead(&mut self) {
        let first = self.first();
        let (mut open, mut known) = (VecDeque::from([first]), FxHashSet::from_iter([first]));
        let (items, fuel) = (self.rows.made() + MAX_ITEMS, self.lexer.fuel().saturating_sub(MAX_FUEL));
        let mut left = MAX_BYTES;
        while let Some(place) = open.pop_front() {
            let hint = self.lexer.hint(place.state);
            let ends = if let NextByte::ForcedByte(_) = hint { &[] } else { ENDS };
            for byte in hint.some_bytes().iter().chain(ends) {
                if left == 0 || self.rows.made() > items || self.lexer.fuel() < fuel {
                    return;
                }
                left -= 1;
                let Some(next) = self.push(place, *byte).filter(|next| known.insert(*next)) else { continue };
                // What must come is followed to its end.
                match ends {
                    [] => open.push_front(next),
                    _ => open.push_back(next),
                }
            }
        }
    }
}
