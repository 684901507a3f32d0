//! How far places are from an end, and the way there where lexemes are in each other's way: places are tried, the nearest to
//! an end first.
//!
//! ```text
//!  {"a": [1, {"b": "te  ─ end of the lexeme: " ─► row ─ the cheapest of its lexemes: } ─► row ─ ] ─► row ─ } ─► end
//! ```
//!
//! A best-first search (A*: Hart, Nilsson and Raphael, 1968) over places, led by what their rows [cost](super::costs).
//! O(places), of which [`MAX_PLACES`] are tried; each may make rows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashSet;

use super::bounds::NEVER;
use super::ends::End;
use super::piece::Shortest;
use crate::backends::parser::different::unlike::Ends;
use crate::backends::parser::moves::Place;
use crate::backends::parser::rows::RowId;
use crate::backends::parser::states::States;
use crate::context::{Step, Tokens};

/// Places that are tried in one search, besides one for each byte of a longer completion.
const MAX_PLACES: usize = 2_000;
/// Lexemes that are tried in a row.
const MAX_LEXEMES: usize = 4;

/// A place that a search has come to.
struct Reached {
    place: Place,
    /// Where it came from, and by what.
    before: usize,
    steps: Vec<Step>,
}

impl States {
    /// At least how many bytes complete the text from here, and nearly always that many; None where nothing is known to.
    pub(crate) fn bytes_to_end(&mut self, tokens: &Tokens, place: Place) -> Option<u32> {
        let fuel = self.limits.step_lexer_fuel;
        if self.costs.prepare(&self.rules, &mut self.lexer, tokens, fuel) {
            self.lexer.refuel(fuel);
        }
        let cost = match place.pending {
            false => self.cost_of_row(place.row),
            true => {
                let ends = self.costs.ends.of(&mut self.lexer, place.state);
                let cost = |end: &End| {
                    let row = self.after(place.row, end.set)?;
                    Some(self.cost_of_row(row).saturating_add(end.left))
                };
                ends.iter().filter_map(cost).min().unwrap_or(NEVER)
            }
        };
        (cost < NEVER).then_some(cost)
    }

    /// The cost of what follows a row; at least, in arrays of different items.
    pub(super) fn cost_of_row(&mut self, row: RowId) -> u32 {
        if self.rows.get(row).accepting {
            return 0;
        }
        self.costs.of_row(&self.rules, &self.rows, row)
    }

    /// The shortest completion from here, if one is found. Where items of arrays must differ there may be too many ways for
    /// that; then one that is found by going on with the nearest to an end.
    pub(super) fn searched(&mut self, tokens: &Tokens, place: Place) -> Option<Vec<Step>> {
        let found = self.search(tokens, place, false);
        if found.is_some() || !self.rules.remembers { found } else { self.search(tokens, place, true) }
    }

    fn search(&mut self, tokens: &Tokens, place: Place, nearest: bool) -> Option<Vec<Step>> {
        let first = self.bytes_to_end(tokens, place)?;
        let mut reached = vec![Reached { place, before: 0, steps: Vec::new() }];
        // Of those that are as near, the one that has come farthest.
        let mut open = BinaryHeap::from([(Reverse(first), 0u32, Reverse(0usize))]);
        let mut known: FxHashSet<Place> = FxHashSet::default();
        while let Some((_, length, Reverse(at))) = open.pop() {
            let place = reached[at].place;
            if !known.insert(place) {
                continue;
            }
            if self.accepts(place) {
                return Some(traced(&reached, at));
            }
            if known.len() > MAX_PLACES.max(first as usize) || self.check().is_err() {
                return None;
            }
            for steps in self.continuations(place) {
                let Some(place) = steps.iter().try_fold(place, |place, step| self.step(tokens, place, *step))
                else {
                    continue;
                };
                let length = length + steps.len() as u32;
                if let Some(cost) = self.bytes_to_end(tokens, place) {
                    let said = if nearest { cost } else { length + cost };
                    open.push((Reverse(said), length, Reverse(reached.len())));
                    reached.push(Reached { place, before: at, steps });
                }
            }
        }
        None
    }

    /// What may come next on the way to an end: the rest of a lexeme, or a whole one.
    fn continuations(&mut self, place: Place) -> Vec<Vec<Step>> {
        let bytes = |text: Vec<u8>| text.into_iter().map(Step::Byte).collect::<Vec<_>>();
        let mut out: Vec<Vec<Step>> = Vec::new();
        match self.different(place) {
            Ends::Any => {}
            Ends::Away(text) => return vec![bytes(text)],
            Ends::Likely(texts) => out.extend(texts.into_iter().map(bytes)),
        }
        if place.pending
            && let Some(flushed) = self.flushed(place)
        {
            match self.different(flushed) {
                Ends::Any => {}
                Ends::Away(text) => out.push(bytes(text)),
                Ends::Likely(texts) => out.extend(texts.into_iter().map(bytes)),
            }
        }
        let mut rows = Vec::new();
        if place.pending {
            for end in self.costs.ends.of(&mut self.lexer, place.state).iter() {
                if end.left > 0 {
                    out.push(bytes(self.costs.ends.text(place.state, *end)));
                } else if let Some(row) = self.after(place.row, end.set) {
                    rows.push(row);
                }
            }
        } else {
            rows.push(place.row);
        }
        for row in rows {
            self.cost_of_row(row);
            for lexeme in self.costs.nearest_lexemes(&self.rules, &self.rows, row, MAX_LEXEMES) {
                out.extend(self.costs.lexemes[lexeme as usize].as_ref().map(Shortest::steps));
            }
        }
        out.retain(|steps| !steps.is_empty());
        out
    }

    /// The place after a part of a completion.
    pub(super) fn step(&mut self, tokens: &Tokens, place: Place, step: Step) -> Option<Place> {
        match step {
            Step::Byte(byte) => self.push(place, byte),
            Step::Special(token) => self.take(tokens, place, token),
        }
    }
}

fn traced(reached: &[Reached], mut at: usize) -> Vec<Step> {
    let mut parts = Vec::new();
    while at > 0 {
        parts.push(&reached[at].steps);
        at = reached[at].before;
    }
    parts.into_iter().rev().flatten().copied().collect()
}
