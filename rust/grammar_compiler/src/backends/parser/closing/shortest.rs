//! The shortest text that completes an answer, written from what it costs.
//!
//! ```text
//!  row ─ its cheapest item ─► lexemes of what is left of its rule ─► the item that waits for it, in the row where it began ─► ...
//!  {"a": [1      the rest of an array: ]                               of the object: , key1 : 0 }
//! ```
//!
//! No row is made for it, so that O(its lexemes * rules of a symbol) finds a completion of any length. It is what the lexer
//! reads from it as long as no lexeme of the grammar is in another's way: each must end where it does even if any other may
//! begin with it, which is looked at once for a lexeme. Where one is in the way, a [search](super::nearest) tries others.
//!
//! An item of an array of different ones that is one lexeme is the shortest that has not come: O(values that have come) for
//! an array. Other such items are written like any. Where there are such arrays the text is then read from the place on, and
//! a search finds another if an item comes twice in it.

use std::sync::Arc;

use llguidance::earley::ParamValue;
use rustc_hash::FxHashSet;

use super::bounds::NEVER;
use super::costs::Costs;
use super::ends::{End, Tail};
use super::items::Items;
use super::piece::Shortest;
use crate::backends::parser::different::memory::Stage;
use crate::backends::parser::different::unlike::Ends;
use crate::backends::parser::different::values::Json;
use crate::backends::parser::moves::Place;
use crate::backends::parser::rows::RowId;
use crate::backends::parser::rules::{END, START};
use crate::backends::parser::states::States;
use crate::context::{Step, Tokens};

/// A part of a completion.
enum Part {
    Lexeme(u32),
    /// An item of an array of different ones, which is one of these lexemes.
    Item(u32, Vec<u32>),
    /// An item of several lexemes begins, which may become one that comes in its array.
    Compound,
}

/// A completion.
struct Written {
    pieces: Vec<Shortest>,
    /// No item comes twice in an array of different ones.
    sure: bool,
}

impl Written {
    fn steps(&self) -> Vec<Step> {
        self.pieces.iter().flat_map(Shortest::steps).collect()
    }

    /// A number of tokens that is enough for it, each token of one piece.
    fn apart(&self) -> usize {
        self.pieces.iter().map(|piece| piece.tokens() as usize).sum()
    }

    /// The same where a token may be of several pieces; None if some bytes have no tokens.
    fn together(&self, tokens: &Tokens) -> Option<usize> {
        let (mut count, mut text) = (0, Vec::new());
        for piece in &self.pieces {
            match piece {
                Shortest::Text(more, _) => text.extend_from_slice(more),
                Shortest::Special(_) => {
                    count += 1 + tokens.at_most(&text)? as usize;
                    text.clear();
                }
            }
        }
        Some(count + tokens.at_most(&text)? as usize)
    }
}

/// An array of different items.
#[derive(Default)]
struct Array {
    /// The values that have come.
    seen: FxHashSet<Arc<Json>>,
    /// How many lexemes have come since an item.
    since: usize,
    /// The symbol of its items, and the number of the next that may not have come.
    next: Option<(u32, usize)>,
}

/// Longer completions are not written: every stream waits meanwhile.
const MAX_BYTES: u32 = 1 << 17;
/// An end that is no farther away would have been found.
const SHORT: u32 = 1_000;
/// Symbols that are followed for a byte of a completion, and besides; more are rules that name each other.
const SYMBOLS_PER_BYTE: usize = 32;
const MAX_SYMBOLS: usize = 10_000;

impl States {
    /// The shortest completion from here, if one is found.
    pub(crate) fn completion(&mut self, tokens: &Tokens, place: Place) -> Option<Vec<Step>> {
        self.bytes_to_end(tokens, place).filter(|bytes| *bytes <= MAX_BYTES)?;
        let steps = self.written(tokens, place).map(|written| written.steps());
        let ends = steps.filter(|steps| !self.rules.remembers || self.ends(tokens, place, steps));
        ends.or_else(|| self.searched(tokens, place))
    }

    /// Whether no text from here ends: each lexeme ends, and no short row of them does.
    pub(crate) fn never_ends(&mut self, tokens: &Tokens, place: Place) -> bool {
        let rules = self.rules.clone();
        let mut lexemes = rules.symbols.iter().filter_map(|symbol| symbol.lexeme);
        let mut each_ends = |costs: &Costs| lexemes.all(|lexeme| costs.lexemes[lexeme as usize].is_some());
        self.completion(tokens, place).is_none()
            && self.check().is_ok()
            && each_ends(&self.costs)
            && self.bytes_to_end(tokens, place).is_none_or(|bytes| bytes <= SHORT)
    }

    /// Whether `limit` tokens are surely enough for the shortest completion; None where only that one tells. O(its lexemes),
    /// and O(its bytes) where a token may have to be of several lexemes.
    pub(crate) fn ends_within(&mut self, tokens: &Tokens, place: Place, limit: usize) -> Option<bool> {
        self.bytes_to_end(tokens, place).filter(|bytes| *bytes <= MAX_BYTES)?;
        let written = self.written(tokens, place).filter(|written| written.sure)?;
        Some(written.apart() <= limit || written.together(tokens).is_some_and(|count| count <= limit))
    }

    /// Whether the text may end behind these steps.
    fn ends(&mut self, tokens: &Tokens, place: Place, steps: &[Step]) -> bool {
        let end = steps.iter().try_fold(place, |place, step| self.step(tokens, place, *step));
        end.is_some_and(|end| self.accepts(end))
    }

    fn written(&mut self, tokens: &Tokens, place: Place) -> Option<Written> {
        let (text, mut sure) = if place.pending { self.nearest_end(place)? } else { (Vec::new(), true) };
        let behind = text.iter().try_fold(place, |place, byte| self.push(place, *byte))?;
        let tail = if behind.pending { Tail::In(behind.state) } else { Tail::Ended };
        let begun = self.flushed(behind)?;
        sure &= !self.memories.is_within_item(begun.memory);
        let parts = self.parts(begun.row)?;
        let array = self.array_around(begun);
        let mut writer = Writer { pieces: vec![Shortest::of_text(tokens, text)], tail, array };
        for part in parts {
            match part {
                Part::Lexeme(lexeme) => writer.lexeme(self, lexeme)?,
                Part::Item(symbol, lexemes) => writer.item(self, tokens, symbol, lexemes)?,
                Part::Compound => sure = false,
            }
        }
        Some(Written { pieces: writer.pieces, sure })
    }

    /// The text that ends what has begun on the shortest way to an end, and whether no item comes again by it.
    fn nearest_end(&mut self, place: Place) -> Option<(Vec<u8>, bool)> {
        let ends = self.different(place);
        let sure = !matches!(ends, Ends::Likely(_));
        if let Ends::Away(text) = ends {
            return Some((text, sure));
        }
        let mut best: Option<(u32, End)> = None;
        for end in self.costs.ends.of(&mut self.lexer, place.state).iter() {
            let Some(row) = self.after(place.row, end.set) else { continue };
            let cost = self.cost_of_row(row).saturating_add(end.left);
            if cost < best.map_or(NEVER, |(least, _)| least) {
                best = Some((cost, *end));
            }
        }
        best.map(|(_, end)| (self.costs.ends.text(place.state, end), sure))
    }

    /// The array of different items that a place is in, between two lexemes.
    fn array_around(&self, place: Place) -> Option<Array> {
        let since = match self.memories.stage(place.memory) {
            Stage::Ended => 0,
            Stage::Between | Stage::Before => 1,
            // What ends an item of several lexemes comes first.
            Stage::Outside | Stage::Open | Stage::Whole | Stage::TooDeep => return None,
        };
        Some(Array { seen: self.memories.come(place.memory).cloned().collect(), since, next: None })
    }

    /// What a row's shortest completion is made of.
    fn parts(&mut self, row: RowId) -> Option<Vec<Part>> {
        let (mut parts, mut waiting) = (Vec::new(), None);
        let mut left = MAX_SYMBOLS + SYMBOLS_PER_BYTE * self.cost_of_row(row).min(NEVER) as usize;
        if self.rows.get(row).accepting {
            return Some(parts);
        }
        let mut row = self.rows.get(row).base();
        loop {
            let item = self.costs.cheapest(&self.rules, &self.rows, row, waiting)?;
            let behind = u32::from(waiting.is_some());
            self.rest(item.place + behind, item.parameter, &mut left, &mut parts)?;
            let of = self.rules.elements[item.place as usize].of;
            if of == START {
                return Some(parts);
            }
            left = left.checked_sub(1)?;
            row = item.origin.unwrap_or(row);
            waiting = Some(of);
        }
    }

    /// Appends what is left of a rule from a place on.
    fn rest(&mut self, place: u32, parameter: u64, left: &mut usize, parts: &mut Vec<Part>) -> Option<()> {
        let rules = self.rules.clone();
        let mut open = vec![(place, parameter)];
        while let Some((place, parameter)) = open.pop() {
            let element = &rules.elements[place as usize];
            if element.symbol == END {
                continue;
            }
            *left = left.checked_sub(1)?;
            if rules.elements[place as usize + 1].symbol != END {
                open.push((place + 1, parameter));
            }
            let symbol = &rules.symbols[element.symbol as usize];
            let own = if rules.parametric { element.parameter.eval(ParamValue(parameter)).0 } else { 0 };
            if symbol.nullable
                || (rules.parametric && symbol.nullable_if.iter().any(|on| on.eval(ParamValue(own))))
            {
                continue;
            }
            if symbol.is_item {
                match self.different_lexemes(element.symbol) {
                    Some(lexemes) => {
                        parts.push(Part::Item(element.symbol, lexemes));
                        continue;
                    }
                    None => parts.push(Part::Compound),
                }
            }
            if let Some(lexeme) = symbol.lexeme {
                parts.push(Part::Lexeme(lexeme));
            } else if symbol.nested.is_some() {
                open.push((symbol.rules[0].0, parameter));
            } else {
                let least = self.costs.of_symbol(&rules, element.symbol, own);
                if !(1..NEVER).contains(&least) {
                    // What rows do not take for empty is not left out.
                    return None;
                }
                let mut best: Option<(u32, u32)> = None;
                for (place, _) in
                    symbol.rules.iter().filter(|(_, on)| !rules.parametric || on.eval(ParamValue(own)))
                {
                    let cost = self.costs.of_rest(&rules, *place, own);
                    if best.is_none_or(|(known, _)| cost < known) {
                        best = Some((cost, *place));
                    }
                    if cost == least {
                        break;
                    }
                }
                open.push((best?.1, own));
            }
        }
        Some(())
    }

    /// The lexemes that an item may be; None if it may be several in a row.
    fn different_lexemes(&self, symbol: u32) -> Option<Vec<u32>> {
        let (mut todo, mut known, mut lexemes) = (vec![symbol], FxHashSet::default(), Vec::new());
        while let Some(symbol) = todo.pop() {
            let about = &self.rules.symbols[symbol as usize];
            lexemes.extend(about.lexeme);
            for (place, on) in &about.rules {
                let [only] = self.rules.of(*place) else { return None };
                if !on.is_true() {
                    return None;
                }
                if known.insert(only.symbol) {
                    todo.push(only.symbol);
                }
            }
        }
        Some(lexemes)
    }
}

/// Writes the parts of a completion.
struct Writer {
    pieces: Vec<Shortest>,
    tail: Tail,
    array: Option<Array>,
}

impl Writer {
    fn lexeme(&mut self, states: &mut States, lexeme: u32) -> Option<()> {
        if let Some(array) = &mut self.array {
            array.since += 1;
        }
        let shortest = states.costs.lexemes[lexeme as usize].clone()?;
        let tail = match &shortest {
            Shortest::Special(_) => Tail::Ended,
            Shortest::Text(text, _) => {
                let lexer = &mut states.lexer;
                let tails = &mut states.costs.tails;
                (*tails.entry(lexeme).or_insert_with(|| Tail::of(text, &[lexeme], lexer)))?
            }
        };
        self.piece(states, shortest, tail)
    }

    /// An item that has not come in its array: an item of the same array comes one lexeme after the last.
    fn item(&mut self, states: &mut States, tokens: &Tokens, symbol: u32, lexemes: Vec<u32>) -> Option<()> {
        let mut array = self.array.take().filter(|array| array.since == 1).unwrap_or_default();
        let mut number = array.next.filter(|(of, _)| *of == symbol).map_or(0, |(_, number)| number);
        let Costs { items, ends, .. } = &mut states.costs;
        let items = items.entry(symbol).or_insert_with(|| Items::new(&mut states.lexer, lexemes));
        let item = loop {
            let item = items.get(number, tokens, &mut states.lexer, ends)?;
            number += 1;
            if array.seen.insert(item.value.clone()) {
                break item.clone();
            }
        };
        self.array = Some(Array { since: 0, next: Some((symbol, number)), ..array });
        self.piece(states, item.text, item.tail?)
    }

    /// Appends a text; None if its first byte may belong to the lexeme before it.
    fn piece(&mut self, states: &mut States, piece: Shortest, tail: Tail) -> Option<()> {
        if let (Shortest::Text(text, _), Tail::In(state)) = (&piece, self.tail)
            && !states.lexer.transition(state, *text.first()?).is_dead()
        {
            return None;
        }
        self.pieces.push(piece);
        self.tail = tail;
        Some(())
    }
}
