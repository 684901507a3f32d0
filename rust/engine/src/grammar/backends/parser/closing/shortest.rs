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

use llguidance::earley::ParamValue;
use rustc_hash::FxHashSet;

use super::costs::Shortest;
use super::ends::{End, Tail};
use super::paths::NEVER;
use crate::grammar::backends::parser::different::memory::Stage;
use crate::grammar::backends::parser::different::unlike::Ends;
use crate::grammar::backends::parser::different::unused::Texts;
use crate::grammar::backends::parser::different::values::{self, Json};
use crate::grammar::backends::parser::lexer::{Lexer, Move, NO_SET};
use crate::grammar::backends::parser::moves::Place;
use crate::grammar::backends::parser::rows::RowId;
use crate::grammar::backends::parser::rules::{END, START};
use crate::grammar::backends::parser::states::States;
use crate::grammar::context::{Step, Tokens};

/// A part of a completion.
enum Part {
    Lexeme(u32),
    /// An item of an array of different ones, which is one of these lexemes.
    Item(u32, Vec<u32>),
}

/// An array of different items.
#[derive(Default)]
struct Array {
    /// The values that have come.
    seen: FxHashSet<Json>,
    /// How many lexemes have come since an item.
    since: usize,
    /// The item's texts, by its symbol.
    texts: Option<(u32, Texts)>,
}

/// Symbols that are followed for a byte of a completion, and besides; more are rules that name each other.
const SYMBOLS_PER_BYTE: usize = 32;
const MAX_SYMBOLS: usize = 10_000;

impl States {
    /// The shortest completion from here, if one is found.
    pub(crate) fn completion(&mut self, tokens: &Tokens, place: Place) -> Option<Vec<Step>> {
        self.bytes_to_end(tokens, place)?;
        let written =
            self.written(place).filter(|steps| !self.rules.remembers || self.ends(tokens, place, steps));
        written.or_else(|| self.searched(tokens, place))
    }

    /// Whether the text may end behind these steps.
    fn ends(&mut self, tokens: &Tokens, place: Place, steps: &[Step]) -> bool {
        let end = steps.iter().try_fold(place, |place, step| self.step(tokens, place, *step));
        end.is_some_and(|end| self.accepts(end))
    }

    fn written(&mut self, place: Place) -> Option<Vec<Step>> {
        let text = if place.pending { self.nearest_end(place)? } else { Vec::new() };
        let behind = text.iter().try_fold(place, |place, byte| self.push(place, *byte))?;
        let tail = if behind.pending { Tail::In(behind.state) } else { Tail::Ended };
        let begun = self.flushed(behind)?;
        let parts = self.parts(begun.row)?;
        let array = self.array_around(begun);
        let mut writer = Writer { steps: text.into_iter().map(Step::Byte).collect(), tail, array };
        for part in parts {
            match part {
                Part::Lexeme(lexeme) => writer.lexeme(self, lexeme)?,
                Part::Item(symbol, lexemes) => writer.item(self, symbol, &lexemes)?,
            }
        }
        Some(writer.steps)
    }

    /// The text that ends what has begun on the shortest way to an end.
    fn nearest_end(&mut self, place: Place) -> Option<Vec<u8>> {
        if let Ends::Away(text) = self.different(place) {
            return Some(text);
        }
        let mut best: Option<(u32, End)> = None;
        for end in self.costs.ends.of(&mut self.lexer, place.state).iter() {
            let Some(row) = self.after(place.row, end.set) else { continue };
            let cost = self.cost_of_row(row).saturating_add(end.left);
            if cost < best.map_or(NEVER, |(least, _)| least) {
                best = Some((cost, *end));
            }
        }
        best.map(|(_, end)| self.costs.ends.text(place.state, end))
    }

    /// The array of different items that a place is in, between two lexemes.
    fn array_around(&self, place: Place) -> Option<Array> {
        let since = match self.memories.stage(place.memory) {
            Stage::Ended => 0,
            Stage::Between | Stage::Before => 1,
            // What ends an item of several lexemes comes first.
            Stage::Outside | Stage::Open | Stage::Whole | Stage::TooDeep => return None,
        };
        Some(Array { seen: self.memories.come(place.memory).cloned().collect(), since, texts: None })
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
            if let Some(lexemes) = self.different_lexemes(element.symbol) {
                parts.push(Part::Item(element.symbol, lexemes));
            } else if let Some(lexeme) = symbol.lexeme {
                parts.push(Part::Lexeme(lexeme));
            } else if symbol.nested.is_some() {
                open.push((symbol.rules[0].0, parameter));
            } else {
                let least = self.costs.of_symbol(&rules, element.symbol, own);
                if !(1..NEVER).contains(&least) {
                    // What rows do not take for empty is not left out.
                    return None;
                }
                let mut ways = symbol.rules.iter();
                let (place, _) = ways.find(|(place, on)| {
                    (!rules.parametric || on.eval(ParamValue(own)))
                        && self.costs.of_rest(&rules, *place, own) == least
                })?;
                open.push((*place, own));
            }
        }
        Some(())
    }

    /// The lexemes that an item of an array of different ones may be; None of other symbols, or if it may be several in a row.
    fn different_lexemes(&self, symbol: u32) -> Option<Vec<u32>> {
        if !self.rules.symbols[symbol as usize].is_item {
            return None;
        }
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

    /// How a text ends that is one of some lexemes, even if any lexeme of the grammar may begin with it; None if another
    /// lexeme is in its way.
    fn tail(&mut self, text: &[u8], lexemes: &[u32]) -> Option<Tail> {
        let lexer = &mut self.lexer;
        if text.is_empty() || lexer.is_near_limits() {
            return None;
        }
        let is_one = |lexer: &Lexer, set| lexer.set(set).iter().any(|lexeme| lexemes.contains(lexeme));
        let mut state = lexer.before_any();
        for (at, byte) in text.iter().enumerate() {
            match lexer.advance(state, *byte) {
                Move::To(next) => state = next,
                Move::EndsWith(set) if at + 1 == text.len() => {
                    let next = lexer.transition(state, *byte);
                    // A lexeme of one byte that ends before it must is not taken as one.
                    let whole = at > 0 || lexer.is_at_end(next);
                    return (whole && is_one(lexer, set)).then_some(Tail::Ended);
                }
                Move::EndsWith(_) | Move::EndedBefore(_) | Move::Nowhere => return None,
            }
        }
        let set = lexer.ended(state);
        (set != NO_SET && is_one(lexer, set)).then_some(Tail::In(state))
    }
}

/// Writes the parts of a completion.
struct Writer {
    steps: Vec<Step>,
    tail: Tail,
    array: Option<Array>,
}

impl Writer {
    fn lexeme(&mut self, states: &mut States, lexeme: u32) -> Option<()> {
        if let Some(array) = &mut self.array {
            array.since += 1;
        }
        match states.costs.lexemes[lexeme as usize].clone()? {
            Shortest::Special(token) => {
                self.steps.push(Step::Special(token));
                self.tail = Tail::Ended;
            }
            Shortest::Text(text) => {
                let tail = match states.costs.tails.get(&lexeme) {
                    Some(known) => *known,
                    None => {
                        let tail = states.tail(&text, &[lexeme]);
                        states.costs.tails.insert(lexeme, tail);
                        tail
                    }
                };
                self.text(states, &text, tail?)?;
            }
        }
        Some(())
    }

    /// An item that has not come in its array: an item of the same array comes one lexeme after the last.
    fn item(&mut self, states: &mut States, symbol: u32, lexemes: &[u32]) -> Option<()> {
        let start = states.lexer.before(lexemes);
        let mut array = self.array.take().filter(|array| array.since == 1).unwrap_or_default();
        let known = array.texts.take().filter(|(of, _)| *of == symbol);
        let mut texts = known.map_or_else(|| Texts::new(start), |(_, texts)| texts);
        let text = loop {
            let (text, _) = texts.next(&mut states.lexer, &mut states.costs.ends)?;
            if array.seen.insert(values::whole(&text)) {
                break text;
            }
        };
        self.array = Some(Array { since: 0, texts: Some((symbol, texts)), ..array });
        let tail = states.tail(&text, lexemes)?;
        self.text(states, &text, tail)
    }

    /// Appends a text; None if its first byte may belong to the lexeme before it.
    fn text(&mut self, states: &mut States, text: &[u8], tail: Tail) -> Option<()> {
        if let Tail::In(state) = self.tail
            && !states.lexer.transition(state, *text.first()?).is_dead()
        {
            return None;
        }
        self.steps.extend(text.iter().map(|byte| Step::Byte(*byte)));
        self.tail = tail;
        Some(())
    }
}
