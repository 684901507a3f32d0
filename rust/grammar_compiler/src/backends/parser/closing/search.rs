//! The shortest text that completes an answer: places are tried, the nearest to an end first.
//!
//! ```text
//!  {"a": [1, {"b": "te  ─ end of the lexeme: " ─► row ─ the cheapest of its lexemes: } ─► row ─ ] ─► row ─ } ─► end
//! ```
//!
//! A best-first search (A*: Hart, Nilsson and Raphael, 1968) over places, led by what their rows [cost](super::costs). That is
//! exact where no lexeme is in another's way and no items must differ, so that the search goes straight: O(lexemes of the
//! completion), each of which may make a row. Where items must differ it prefers to go on, since they are longer than it costs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::costs::steps;
use super::ends::End;
use crate::backends::parser::place::Place;
use crate::backends::parser::states::States;
use crate::context::{Step, Tokens};

/// Longer completions are not looked for: every stream waits meanwhile.
const MAX_BYTES: u32 = 1 << 17;
/// An end that is no farther away would have been found.
const SHORT: u32 = 1_000;
/// Places that are tried in one search, besides one for each byte of a longer completion.
const MAX_PLACES: usize = 2_000;
/// Items that a search may make for a byte of the completion, besides those that any step may make.
const ITEMS_PER_BYTE: usize = 64;
/// How much a byte that is still to come counts where items must differ.
const HASTE: u32 = 64;

/// A place that a search has come to.
struct Reached {
    place: Place,
    /// Where it came from, and by what.
    before: usize,
    steps: Arc<[Step]>,
}

impl States {
    /// At least how many bytes complete the text from here, and nearly always that many; None where nothing is known to.
    pub(crate) fn bytes_to_end(&mut self, tokens: &Tokens, place: Place) -> Option<u32> {
        self.costs.prepare(&self.rules, &mut self.lexer, tokens, self.limits.step_lexer_fuel);
        let mut rows = vec![(place.row, 0)];
        if place.pending {
            let ends = self.costs.ends.of(&mut self.lexer, place.state);
            let row = |end: &End| Some((self.after(place.row, end.set)?, end.text().len() as u32));
            rows = ends.iter().filter_map(row).collect();
        }
        let costs = rows.into_iter().filter_map(|(row, left)| match self.rows.get(row).accepting {
            true => Some(left),
            false => Some(self.costs.nearest(&self.rules, &self.rows, row).first()?.0.saturating_add(left)),
        });
        costs.min()
    }

    /// Whether no text from here ends: each lexeme ends, and no short row of them does.
    pub(crate) fn never_ends(&mut self, tokens: &Tokens, place: Place) -> bool {
        let none = self.completion(tokens, place).is_none() && self.check().is_ok();
        let near = self.bytes_to_end(tokens, place).is_none_or(|bytes| bytes <= SHORT);
        let mut lexemes = self.rules.symbols.iter().filter_map(|symbol| symbol.lexeme);
        none && near && lexemes.all(|lexeme| self.costs.lexemes[lexeme as usize].is_some())
    }

    /// The shortest completion from here, if one is found; a short one where items of arrays must differ.
    pub(crate) fn completion(&mut self, tokens: &Tokens, place: Place) -> Option<Vec<Step>> {
        let first = self.bytes_to_end(tokens, place).filter(|bytes| *bytes <= MAX_BYTES)?;
        self.max_made += ITEMS_PER_BYTE * first as usize;
        let haste = if self.rules.remembers { HASTE } else { 1 };
        let mut reached = vec![Reached { place, before: 0, steps: Arc::default() }];
        // Of those that are as near, the one that has come farthest.
        let mut open = BinaryHeap::from([(Reverse(first), 0u32, Reverse(0usize))]);
        let mut known: FxHashSet<Place> = FxHashSet::default();
        while let Some((_, length, Reverse(mut at))) = open.pop() {
            let here = reached[at].place;
            if !known.insert(here) {
                continue;
            }
            if self.costs.ways.contains_key(&here) || self.accepts(here) {
                // The rest of what has begun is not kept: each of its bytes has another.
                let (mut way, mut from) = (Vec::new(), here);
                while at > 0 {
                    let Reached { place: next, before, steps } = reached.swap_remove(at);
                    match before {
                        0 => (way, from) = (steps.to_vec(), next),
                        _ => _ = self.costs.ways.insert(reached[before].place, (steps, next)),
                    }
                    at = before;
                }
                while let Some((steps, next)) = self.costs.ways.get(&from) {
                    way.extend_from_slice(steps);
                    from = *next;
                }
                return Some(way);
            }
            if known.len() > MAX_PLACES.max(first as usize) || self.check().is_err() {
                return None;
            }
            for steps in self.continuations(here) {
                let step = |place, step: &Step| match *step {
                    Step::Byte(byte) => self.push(place, byte),
                    Step::Special(token) => self.take(tokens, place, token),
                };
                let Some(next) = steps.iter().try_fold(here, step) else { continue };
                let length = length + steps.len() as u32;
                if let Some(cost) = self.bytes_to_end(tokens, next).filter(|cost| *cost <= MAX_BYTES) {
                    open.push((Reverse(length + haste * cost), length, Reverse(reached.len())));
                    reached.push(Reached { place: next, before: at, steps });
                }
            }
        }
        None
    }

    /// What may come next on the way to an end: the rest of a lexeme, or a whole one.
    fn continuations(&mut self, place: Place) -> Vec<Arc<[Step]>> {
        let mut texts = Vec::new();
        if place.pending {
            texts = self.different(place);
            let ends = self.costs.ends.of(&mut self.lexer, place.state);
            texts.extend(ends.iter().map(|end| end.text().to_vec()));
        }
        let mut lexemes = Vec::new();
        if let Some(place) = self.flushed(place) {
            let nearest = self.costs.nearest(&self.rules, &self.rows, place.row);
            lexemes = nearest.iter().map(|(_, lexeme)| *lexeme).collect();
            match self.unused_item(place) {
                None => texts.extend(self.different(place)),
                Some((text, set)) => {
                    texts.push(text);
                    lexemes.retain(|lexeme| !self.lexer.set(set).contains(lexeme));
                }
            }
        }
        let lexemes = lexemes.into_iter().filter_map(|lexeme| self.costs.lexemes[lexeme as usize].clone());
        texts.iter().map(|text| steps(text)).chain(lexemes).filter(|steps| !steps.is_empty()).collect()
    }
}
