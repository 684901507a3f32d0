//! The shortest ways to the ends of symbols with parameters, as lists and sets have them: each ends in another symbol with
//! the next parameter.
//!
//! ```text
//!  r::_ : "}"        if a and b have come         r::{}  ─ 8 bytes for a, and for r::{a} ─ 9 for b, and for r::{a, b} ─ 1
//!       | a r::{a}   if a has not                    at least: the end, and the cheapest way to set each bit that it asks for
//!       | b r::{b}   if b has not
//! ```
//!
//! Where nothing is in the way of a set of bits, the distance is that sum, O(bits); else the end is searched for by A* (Hart,
//! Nilsson and Raphael, 1968), which is led by the sum.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use llguidance::earley::{ParamCond, ParamExpr, ParamValue};
use rustc_hash::{FxHashMap, FxHashSet};

/// So many symbols with parameters are tried in one search; one that finds no end gives what it must cost at least.
const MAX_NODES: usize = 20_000;

/// What cannot be completed.
pub(super) const NEVER: u32 = u32::MAX / 4;

/// A symbol with its parameter.
pub(super) type Node = (u32, u64);

/// A way to go on from a symbol: so many bytes, and what then follows.
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
    /// That is all that it asks for.
    whole: bool,
    /// Counters: their bits, the first of them, and the least value.
    counters: Vec<(u64, u32, u64)>,
    /// Of some bits, how many.
    several: Vec<(u64, u32)>,
}

/// The ways from a symbol to its end, through all that it may come to.
#[derive(Debug)]
pub(super) struct Paths {
    ways: FxHashMap<u32, Vec<Way>>,
    regions: FxHashMap<u32, Region>,
}

/// What the ways ask for and give, behind one symbol.
#[derive(Debug)]
struct Region {
    ends: Vec<Needs>,
    /// The cheapest way to set a bit, and to count up from one.
    bits: [u32; 64],
    counts: [u32; 64],
    /// Each way sets one bit or counts, so that what an end asks for adds up.
    apart: bool,
    /// Nothing is in the way of what an end asks for, so that the sum is what it takes.
    free: bool,
}

impl Paths {
    /// Those from `symbol`, where `of` gives the ways on from each.
    pub fn new(symbol: u32, of: impl Fn(u32) -> Vec<Way>) -> Self {
        let mut ways: FxHashMap<u32, Vec<Way>> = FxHashMap::default();
        let mut todo = vec![symbol];
        while let Some(symbol) = todo.pop() {
            ways.entry(symbol).or_insert_with(|| {
                let found = of(symbol);
                todo.extend(found.iter().filter_map(|way| way.next.as_ref().map(|(symbol, _)| *symbol)));
                found
            });
        }
        let regions = ways.keys().map(|symbol| (*symbol, Region::new(&ways, *symbol))).collect();
        Self { ways, regions }
    }

    /// At least how far a symbol is from its end, and whether that is just how far it is.
    pub fn least(&self, node: Node) -> (u32, bool) {
        self.regions.get(&node.0).map_or((NEVER, true), |region| (region.least(node.1), region.free))
    }

    /// The distances of the symbols on the way to the end, that of `from` last; none if there is no end.
    pub fn find(&self, from: Node) -> Vec<(Node, u32)> {
        // Each with the one before it, and how far it is from the first; None is an end.
        let mut reached: Vec<(Option<Node>, usize, u32)> = vec![(Some(from), 0, 0)];
        let mut open = BinaryHeap::from([(Reverse(self.least(from).0), 0u32, 0usize)]);
        let mut seen: FxHashSet<Node> = FxHashSet::default();
        while let Some((Reverse(least), far, at)) = open.pop() {
            if least >= NEVER {
                break;
            }
            let Some(node) = reached[at].0.filter(|node| !self.least(*node).1) else {
                return traced(&reached, at, least);
            };
            if !seen.insert(node) {
                continue;
            }
            if seen.len() > MAX_NODES {
                return vec![(from, least)];
            }
            let parameter = ParamValue(node.1);
            for way in self.ways.get(&node.0).into_iter().flatten() {
                // The condition is that of the rule, whose parameter is the symbol's.
                if !way.condition.eval(parameter) {
                    continue;
                }
                let far = far + way.bytes;
                let next = way.next.as_ref().map(|(symbol, next)| (*symbol, next.eval(parameter).0));
                let least = far.saturating_add(next.map_or(0, |next| self.least(next).0));
                // Of those that are as near, the one that has come farthest.
                open.push((Reverse(least), far, reached.len()));
                reached.push((next, at, far));
            }
        }
        Vec::new()
    }
}

impl Region {
    fn new(ways: &FxHashMap<u32, Vec<Way>>, symbol: u32) -> Self {
        let mut made =
            Self { ends: Vec::new(), bits: [NEVER; 64], counts: [NEVER; 64], apart: true, free: false };
        let (mut todo, mut known) = (vec![symbol], FxHashSet::default());
        while let Some(symbol) = todo.pop() {
            if known.insert(symbol) {
                for way in &ways[&symbol] {
                    todo.extend(way.next.as_ref().map(|(symbol, _)| *symbol));
                    made.note(way);
                }
            }
        }
        made.free = known.len() == 1 && made.is_free(&ways[&symbol]);
        made
    }

    /// Whether each bit may be set, and each counter count, as long as an end asks for that.
    fn is_free(&self, ways: &[Way]) -> bool {
        let counted = |counter: u32| {
            self.ends.iter().flat_map(|end| &end.counters).filter(move |(_, first, _)| *first == counter)
        };
        let several =
            |mask: u64| self.ends.iter().flat_map(|end| &end.several).filter(move |(bits, _)| *bits == mask);
        let is_open = |way: &Way| match &way.next {
            None => way.condition.is_true() || self.ends.iter().all(|end| end.whole),
            Some((_, ParamExpr::BitOr(bit))) => parts(&way.condition).all(|condition| match condition {
                ParamCond::True => true,
                ParamCond::EQ(tested, value) => tested.mask() == bit.0 && value.0 == 0,
                ParamCond::BitCountLT(bits, most) => {
                    several(bits.mask()).all(|(_, count)| count <= &u32::from(*most))
                        && self.ends.iter().all(|end| end.bits & bits.mask() == 0)
                }
                _ => false,
            }),
            Some((_, ParamExpr::Incr(counter))) => parts(&way.condition).all(|condition| match condition {
                ParamCond::True => true,
                ParamCond::LT(tested, most) => {
                    tested.mask() == counter.mask()
                        && counted(counter.start().into()).all(|(_, _, least)| least <= &most.0)
                }
                _ => false,
            }),
            Some(_) => way.condition.is_true(),
        };
        self.apart && ways.iter().all(is_open)
    }

    /// What a way sets, or asks for at an end.
    fn note(&mut self, way: &Way) {
        let cheaper = |known: &mut u32| *known = way.bytes.min(*known);
        match &way.next {
            None => {
                let mut needs = Needs { bytes: way.bytes, whole: true, ..Needs::default() };
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

    /// At least how far the end is with a parameter.
    fn least(&self, parameter: u64) -> u32 {
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
            ParamCond::True => {}
            ParamCond::EQ(bit, value) if bit.len() == 1 && value.0 == 1 => self.bits |= bit.mask(),
            ParamCond::GE(counter, value) => {
                self.counters.push((counter.mask(), counter.start().into(), value.0));
            }
            ParamCond::BitCountGE(bits, count) => self.several.push((bits.mask(), (*count).into())),
            _ => self.whole = false,
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

/// The nodes on a way of a length, the first last.
fn traced(reached: &[(Option<Node>, usize, u32)], end: usize, whole: u32) -> Vec<(Node, u32)> {
    let mut at = end;
    let mut found = Vec::new();
    loop {
        let (node, before, far) = reached[at];
        found.extend(node.map(|node| (node, whole - far)));
        if at == 0 {
            return found;
        }
        at = before;
    }
}
