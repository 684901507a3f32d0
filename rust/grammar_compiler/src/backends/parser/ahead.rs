//! What texts come to first, made when the grammar is compiled: rows, states of the lexer, and verdicts within literals.
//!
//! ```text
//!  {"name": ─► "      a run: bytes that must come          { "na me ": "       a verdict behind each of the longest
//!              └► ", "age": ─► 0 ...                                           tokens that fit
//!                     where there is a choice: the bytes that the lexer names, and ends of values
//! ```
//!
//! A mask's walk over the tokens comes to the same states, and makes those that are not there. Making them takes as long as
//! the rest of a literal's mask.
//!
//! O(1) bytes, items and work of the lexer.

use std::collections::VecDeque;

use anyhow::Result;
use llguidance::derivre::NextByte;
use rustc_hash::FxHashSet;

use super::automaton::Automaton;
use super::place::Place;
use super::states::States;
use crate::context::Tokens;

/// Bytes that are followed, ...
const MAX_BYTES: usize = 1_000;
/// ... as long as they have made no more items of rows, ...
const MAX_ITEMS: usize = 2_000;
/// ... and taken no more of the lexer's fuel.
const MAX_FUEL: u64 = 2_000;
/// The ends of a string and of a number, which are choices in all of their states.
const ENDS: &[u8] = b"\",}";
/// Verdicts are found where this many bytes must come: few tokens begin with them.
const MUST_COME: usize = 3;
/// Where no more tokens than this stay in a literal, the longest is followed.
const FEW: usize = 16;

impl Automaton {
    /// Makes what texts come to first, fewer choices before more.
    ///
    /// # Errors
    /// The parser has given up, and requests get another automaton.
    pub fn look_ahead(&self) -> Result<()> {
        self.work(States::look_ahead)
    }
}

impl States {
    fn look_ahead(&mut self, tokens: &Tokens) {
        let first = self.first();
        let (mut open, mut known) = (VecDeque::from([first]), FxHashSet::from_iter([first]));
        let (items, fuel) = (self.rows.made() + MAX_ITEMS, self.lexer.fuel().saturating_sub(MAX_FUEL));
        let (mut run, mut left) = (Vec::new(), MAX_BYTES);
        while let Some(place) = open.pop_front() {
            let hint = self.lexer.hint(place.state);
            let ends = if let NextByte::ForcedByte(_) = hint { &[] } else { ENDS };
            match ends {
                [] => run.push(place),
                _ => self.judge(tokens, std::mem::take(&mut run)),
            }
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

    /// Finds the verdicts within the literals of a run.
    fn judge(&mut self, tokens: &Tokens, run: Vec<Place>) {
        let mut at = 0;
        while let Some(place) = run[..run.len().saturating_sub(MUST_COME)].get(at) {
            let mut length = 1;
            if place.pending {
                let verdict = self.verdicts.of(tokens, &mut self.lexer, place.state);
                let inside = self.verdicts.get(verdict).inside.listed(FEW).unwrap_or_default();
                length = inside.iter().map(|token| tokens.text_bytes(*token).len()).max().unwrap_or(1);
            }
            at += length.max(1);
        }
    }
}
