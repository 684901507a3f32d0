//! How far symbols with parameters are from their ends, at least. Lists and sets have such symbols: each ends in another one
//! with the next parameter.
//!
//! ```text
//!  r::_ : "}"        if a and b have come         r::{}  ─ 8 bytes for a, and for r::{a} ─ 9 for b, and for r::{a, b} ─ 1
//!       | a r::{a}   if a has not                    at least: the end, and the cheapest way to set each bit that it asks for
//!       | b r::{b}   if b has not
//! ```
//!
//! The bound is that sum, O(bits). Where a condition is in the way of a bit, as one that allows a key only behind another, the
//! end is farther away.

use llguidance::earley::{ParamCond, ParamExpr};
use rustc_hash::FxHashSet;

/// What cannot be completed.
pub(super) const NEVER: u32 = u32::MAX / 4;

/// A symbol with its parameter.
pub(super) type Node = (u32, u64);

/// A way to go on from a symbol: the number of its bytes, and the symbols that follow.
#[derive(Debug)]
pub(super) struct Way {
    pub condition: ParamCond,
    pub bytes: u32,
    pub next: Option<(u32, ParamExpr)>,
}

/// What an end asks of a parameter.
#[derive(Debug, Default)]
struct Needs {
    bytes: u32,
    bits: u64,
    /// Counters: their bits, the first of them, and the least value.
    counters: Vec<(u64, u32, u64)>,
    /// How many of some bits.
    several: Vec<(u64, u32)>,
}

/// What the ways from a symbol to its ends ask for and give.
#[derive(Debug)]
pub(super) struct Bound {
    ends: Vec<Needs>,
    /// The cheapest way to set a bit, and to count up by one.
    bits: [u32; 64],
    counts: [u32; 64],
    /// Each way sets one bit or counts, so that what an end asks for adds up.
    apart: bool,
}

impl Bound {
    /// The bound of `symbol`, where `ways` gives the ways on from each symbol.
    pub fn new(symbol: u32, ways: impl Fn(u32) -> Vec<Way>) -> Self {
        let mut made = Self { ends: Vec::new(), bits: [NEVER; 64], counts: [NEVER; 64], apart: true };
        let (mut todo, mut known) = (vec![symbol], FxHashSet::default());
        while let Some(symbol) = todo.pop() {
            if known.insert(symbol) {
                for way in ways(symbol) {
                    made.note(&way);
                    todo.extend(way.next.map(|(symbol, _)| symbol));
                }
            }
        }
        made
    }

    /// What a way sets, or asks for at an end.
    fn note(&mut self, way: &Way) {
        let cheaper = |known: &mut u32| *known = way.bytes.min(*known);
        match &way.next {
            None => {
                let mut needs = Needs { bytes: way.bytes, ..Needs::default() };
                parts(&way.condition).for_each(|condition| needs.add(condition));
                self.ends.push(needs);
            }
            Some((_, ParamExpr::BitOr(bits))) if bits.0.count_ones() == 1 => {
                cheaper(&mut self.bits[bits.0.trailing_zeros() as usize]);
            }
            Some((_, ParamExpr::Incr(counter))) => cheaper(&mut self.counts[counter.start() as usize]),
            Some((_, ParamExpr::SelfRef)) => {}
            Some(_) => self.apart = false,
        }
    }

    /// How many bytes the end is away with a parameter, at least.
    pub fn least(&self, parameter: u64) -> u32 {
        let of = |needs: &Needs| match self.apart {
            true => needs.bytes.saturating_add(needs.missing(parameter, &self.bits, &self.counts)),
            false => needs.bytes,
        };
        self.ends.iter().map(of).min().unwrap_or(NEVER).min(NEVER)
    }
}

impl Needs {
    fn add(&mut self, condition: &ParamCond) {
        match condition {
            ParamCond::EQ(bit, value) if bit.len() == 1 && value.0 == 1 => self.bits |= bit.mask(),
            ParamCond::GE(counter, value) => {
                self.counters.push((counter.mask(), counter.start().into(), value.0));
            }
            ParamCond::BitCountGE(bits, count) => self.several.push((bits.mask(), (*count).into())),
            _ => {}
        }
    }

    /// At least what it takes from a parameter to one that fulfils them.
    fn missing(&self, parameter: u64, bits: &[u32; 64], counts: &[u32; 64]) -> u32 {
        let mut sum = ones(self.bits & !parameter).fold(0, |sum: u32, bit| sum.saturating_add(bits[bit]));
        for (mask, first, least) in &self.counters {
            let missing = least.saturating_sub((parameter & mask) >> first);
            let each = u64::from(counts[*first as usize]);
            sum = sum.saturating_add(missing.saturating_mul(each).min(NEVER.into()) as u32);
        }
        for (mask, count) in &self.several {
            let mut each: Vec<u32> = ones(mask & !parameter).map(|bit| bits[bit]).collect();
            each.sort_unstable();
            let missing = count.saturating_sub((parameter & mask).count_ones()) as usize;
            let least = each.iter().take(missing).fold(0, |sum: u32, one| sum.saturating_add(*one));
            sum = sum.max(if each.len() < missing { NEVER } else { least });
        }
        sum.min(NEVER)
    }
}

/// The conditions that must all hold.
fn parts(condition: &ParamCond) -> impl Iterator<Item = &ParamCond> {
    let mut todo = vec![condition];
    std::iter::from_fn(move || {
        let mut condition = todo.pop()?;
        while let ParamCond::And(one, other) = condition {
            todo.push(other);
            condition = one;
        }
        Some(condition)
    })
}

/// The numbers of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(bit)
    })
}
