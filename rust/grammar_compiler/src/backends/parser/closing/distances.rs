//! How many bytes a rule is from its end.
//!
//! Knuth's generalization of Dijkstra's algorithm (1977), once for a grammar, O(rules * depth). Symbols of members that come
//! once each have parameters: the end of all of them is as far away as the cheapest ways to set the bits that it asks for.
//!
//! ```text
//!  r::_ : "}"        if a and b have come         r::{}  ─ 8 bytes for a, and for r::{a} ─ 9 for b, and for r::{a, b} ─ 1
//!       | a r::{a}   if a has not
//!       | b r::{b}   if b has not
//! ```
//!
//! Where another condition is in the way, the end is farther away.

use llguidance::earley::{ParamCond, ParamExpr, ParamValue};

use crate::backends::parser::rules::{END, Rules};

/// What cannot be completed.
pub(super) const NEVER: u32 = u32::MAX / 4;
/// How many symbols with parameters are followed, each within the one before.
pub(super) const DEPTH: u32 = 4;

/// The distances in one grammar.
pub(super) struct Distances {
    /// Distances of symbols, at least, whatever their parameters.
    symbols: Vec<u32>,
    /// Distances of the rests of rules, by place, likewise.
    rest: Vec<u32>,
    /// The symbols whose parameter matters.
    members: Vec<Option<Box<Members>>>,
}

/// The ways on from a symbol with a parameter.
struct Members {
    /// Rules that come back to the symbol with one bit more: the bit, and their places.
    turns: Vec<(usize, u32)>,
    /// Where the other rules begin, and the bits that they ask for, with their number; an empty one has no place.
    ends: Vec<(Option<u32>, (u64, u32))>,
    /// How many bytes set each bit.
    bits: [u32; 64],
}

impl Distances {
    /// The distances of a grammar; `lexemes` has the lengths of the symbols that are one.
    pub fn new(rules: &Rules, lexemes: impl Iterator<Item = Option<u32>>) -> Self {
        let is_empty = rules.symbols.iter().map(|symbol| symbol.nullable || !symbol.nullable_if.is_empty());
        let symbols =
            lexemes.zip(is_empty).map(|(length, empty)| if empty { 0 } else { length.unwrap_or(NEVER) });
        let mut made = Self {
            symbols: symbols.collect(),
            rest: rules.elements.iter().map(|one| if one.symbol == END { 0 } else { NEVER }).collect(),
            members: (0..rules.symbols.len() as u32).map(|symbol| Members::of(rules, symbol)).collect(),
        };
        while made.relax(rules) {}
        made
    }

    /// Shortens what can be; false if nothing can.
    fn relax(&mut self, rules: &Rules) -> bool {
        let mut changed = false;
        for (at, element) in rules.elements.iter().enumerate().rev() {
            let own = match element.symbol {
                END => continue,
                symbol if element.parameter.needs_param() => self.symbols[symbol as usize],
                symbol => self.of(rules, symbol, element.parameter.eval(ParamValue(0)).0, DEPTH),
            };
            let rest = own.saturating_add(self.rest[at + 1]).min(NEVER);
            changed |= rest != self.rest[at];
            self.rest[at] = rest;
        }
        for (symbol, about) in rules.symbols.iter().enumerate() {
            let best = about.rules.iter().map(|(place, _)| self.rest[*place as usize]).min();
            self.symbols[symbol] = best.unwrap_or(NEVER).min(self.symbols[symbol]);
        }
        for (symbol, members) in self.members.iter_mut().enumerate() {
            let Some(members) = members else { continue };
            for (bit, place) in &members.turns {
                let rest = self.rest[*place as usize];
                let bytes = if rest < NEVER { rest - self.symbols[symbol] } else { NEVER };
                members.bits[*bit] = bytes.min(members.bits[*bit]);
            }
        }
        changed
    }

    /// The distance from a place to the end of its rule, for an item with a parameter.
    pub fn rest(&self, rules: &Rules, place: u32, parameter: u64, depth: u32) -> u32 {
        if depth == 0 || !rules.parametric {
            return self.rest[place as usize];
        }
        let each = rules.of(place).iter().map(|element| {
            self.of(rules, element.symbol, element.parameter.eval(ParamValue(parameter)).0, depth)
        });
        each.fold(0, u32::saturating_add).min(NEVER)
    }

    /// The distance of a symbol.
    fn of(&self, rules: &Rules, symbol: u32, parameter: u64, depth: u32) -> u32 {
        let Some(members) = &self.members[symbol as usize] else { return self.symbols[symbol as usize] };
        let ends = members.ends.iter().map(|(place, asked)| {
            let rest = place.map_or(0, |place| self.rest(rules, place, parameter, depth - 1));
            members.missing(*asked, parameter).saturating_add(rest)
        });
        ends.min().unwrap_or(NEVER).min(NEVER)
    }
}

impl Members {
    /// The ways on from a symbol, if its parameter matters.
    fn of(rules: &Rules, symbol: u32) -> Option<Box<Self>> {
        let about = &rules.symbols[symbol as usize];
        let matters = about.rules.iter().any(|(place, condition)| {
            !condition.is_true() || rules.of(*place).iter().any(|element| element.parameter.needs_param())
        });
        if about.nullable || !matters && about.nullable_if.is_empty() {
            return None;
        }
        let empty = about.nullable_if.iter().map(|condition| (None, asked(condition)));
        let mut made = Self { turns: Vec::new(), ends: empty.collect(), bits: [NEVER; 64] };
        for (place, condition) in &about.rules {
            match rules.of(*place).last().filter(|last| last.symbol == symbol).map(|last| &last.parameter) {
                None => made.ends.push((Some(*place), asked(condition))),
                Some(ParamExpr::SelfRef) => {}
                Some(ParamExpr::BitOr(bits)) if bits.0.count_ones() == 1 => {
                    made.turns.push((bits.0.trailing_zeros() as usize, *place));
                }
                // It may set any.
                Some(_) => made.bits = [0; 64],
            }
        }
        Some(Box::new(made))
    }

    /// How many bytes it takes from a parameter to one with `count` of some bits.
    fn missing(&self, (bits, count): (u64, u32), parameter: u64) -> u32 {
        let missing = count.saturating_sub((bits & parameter).count_ones()) as usize;
        let unset = bits & !parameter;
        let mut each: Vec<u32> =
            (0..64).filter(|bit| unset >> bit & 1 == 1).map(|bit| self.bits[bit]).collect();
        if each.len() > missing {
            each.sort_unstable();
        }
        each.get(..missing).map_or(NEVER, |each| each.iter().copied().fold(0, u32::saturating_add))
    }
}

/// The bits that a condition asks for, and how many of them.
fn asked(condition: &ParamCond) -> (u64, u32) {
    match condition {
        ParamCond::And(one, other) => {
            let (one, other) = (asked(one), asked(other));
            (one.0 | other.0, one.1 + other.1)
        }
        ParamCond::EQ(bit, value) if bit.len() == 1 && value.0 == 1 => (bit.mask(), 1),
        ParamCond::BitCountGE(bits, count) => (bits.mask(), (*count).into()),
        _ => (0, 0),
    }
}
