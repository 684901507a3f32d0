//! How many bytes a rule is from its end.
//!
//! Symbols whose parameter does not matter: Knuth's generalization of Dijkstra's algorithm (1977), once for a grammar,
//! O(rules * depth). The others' are bounds from below, by [`Bound`].

use llguidance::earley::{ParamCond, ParamValue};
use rustc_hash::{FxHashMap, FxHashSet};

use super::bounds::{Bound, NEVER, Node, Way};
use crate::backends::parser::rules::{END, Element, Rules};

/// The distances in one grammar.
#[derive(Debug, Default)]
pub(super) struct Distances {
    /// Distances of symbols; lower bounds where the parameter matters.
    symbols: Vec<u32>,
    /// Distances of the rests of rules, by place; lower bounds where it is [open](Self::open).
    rest: Vec<u32>,
    /// Whether what is left of a rule needs the parameter of its item, by place.
    open: Vec<bool>,
    /// Whether a symbol's parameter matters.
    parametric: Vec<bool>,
    known: FxHashMap<Node, u32>,
    bounds: FxHashMap<u32, Bound>,
}

impl Distances {
    /// The distances of a grammar; `lexemes` has the lengths of the symbols that are one.
    pub fn new(rules: &Rules, lexemes: impl Iterator<Item = Option<u32>>) -> Self {
        let needs = |element: &Element| element.symbol != END && element.parameter.needs_param();
        let mut made = Self {
            symbols: lexemes.map(|length| length.unwrap_or(NEVER)).collect(),
            rest: vec![0; rules.elements.len()],
            open: vec![false; rules.elements.len()],
            parametric: vec![false; rules.symbols.len()],
            known: FxHashMap::default(),
            bounds: FxHashMap::default(),
        };
        for (distance, symbol) in made.symbols.iter_mut().zip(&rules.symbols) {
            if symbol.nullable || !symbol.nullable_if.is_empty() {
                *distance = 0;
            }
        }
        for (symbol, about) in rules.symbols.iter().enumerate() {
            made.parametric[symbol] = !about.nullable_if.is_empty()
                || about
                    .rules
                    .iter()
                    .any(|(place, condition)| !condition.is_true() || rules.of(*place).iter().any(needs));
        }
        for (at, element) in rules.elements.iter().enumerate().rev() {
            made.open[at] = element.symbol != END
                && (made.open[at + 1] || (needs(element) && made.parametric[element.symbol as usize]));
        }
        let fixed = rules.elements.iter().filter(|element| element.symbol != END);
        let fixed = fixed.filter(|element| made.parametric[element.symbol as usize]);
        let fixed: FxHashSet<Node> = fixed.filter_map(fixed_node).collect();
        while made.relax(rules, &fixed) {}
        made
    }

    /// Shortens what can be; false if nothing can.
    fn relax(&mut self, rules: &Rules, fixed: &FxHashSet<Node>) -> bool {
        let mut changed = false;
        for (at, element) in rules.elements.iter().enumerate().rev() {
            self.rest[at] = match element.symbol {
                END => 0,
                _ => self.of_element(element).saturating_add(self.rest[at + 1]).min(NEVER),
            };
        }
        for (symbol, about) in rules.symbols.iter().enumerate() {
            let best = about.rules.iter().map(|(place, _)| self.rest[*place as usize]).min();
            if best.is_some_and(|best| best < self.symbols[symbol]) {
                self.symbols[symbol] = best.unwrap_or(NEVER);
                changed = true;
            }
        }
        for node in fixed {
            let distance = self.bound(rules, node.0).least(node.1);
            if distance < self.known.get(node).copied().unwrap_or(NEVER) {
                self.known.insert(*node, distance);
                changed = true;
            }
        }
        changed
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        let bounds = 600 * self.bounds.len();
        9 * self.rest.len() + 5 * self.symbols.len() + 32 * self.known.len() + bounds
    }

    /// The distance from a place to the end of its rule, for an item with a parameter.
    pub fn rest(&mut self, rules: &Rules, place: u32, parameter: u64) -> u32 {
        if !self.open[place as usize] {
            return self.rest[place as usize];
        }
        let mut sum: u32 = 0;
        for element in rules.of(place) {
            let own = element.parameter.eval(ParamValue(parameter)).0;
            sum = sum.saturating_add(self.of(rules, element.symbol, own));
        }
        sum.min(NEVER)
    }

    /// The distance of a symbol.
    pub fn of(&mut self, rules: &Rules, symbol: u32, parameter: u64) -> u32 {
        match self.parametric[symbol as usize] {
            true => self.of_node(rules, (symbol, parameter)),
            false => self.symbols[symbol as usize],
        }
    }

    /// The distance of a symbol with its parameter.
    fn of_node(&mut self, rules: &Rules, node: Node) -> u32 {
        if !self.bounds.contains_key(&node.0) {
            let bound = self.bound(rules, node.0);
            self.bounds.insert(node.0, bound);
        }
        self.bounds[&node.0].least(node.1)
    }

    fn bound(&self, rules: &Rules, symbol: u32) -> Bound {
        Bound::new(symbol, |symbol| self.ways(rules, symbol))
    }

    /// The ways to go on from a symbol.
    fn ways(&self, rules: &Rules, symbol: u32) -> Vec<Way> {
        let about = &rules.symbols[symbol as usize];
        let always = about.nullable.then_some(&ParamCond::True);
        let empty = always.into_iter().chain(&about.nullable_if);
        let mut ways: Vec<Way> =
            empty.map(|condition| Way { condition: condition.clone(), bytes: 0, next: None }).collect();
        for (place, condition) in &about.rules {
            let mut elements = rules.of(*place);
            let mut next = None;
            if let Some((last, before)) = elements.split_last()
                && last.parameter.needs_param()
                && self.parametric[last.symbol as usize]
            {
                next = Some((last.symbol, last.parameter.clone()));
                elements = before;
            }
            let bytes = elements.iter().fold(0, |sum: u32, one| sum.saturating_add(self.of_element(one)));
            if bytes < NEVER {
                ways.push(Way { condition: condition.clone(), bytes, next });
            }
        }
        ways
    }

    /// That of an element whatever the parameter of its item.
    fn of_element(&self, element: &Element) -> u32 {
        let symbol = element.symbol as usize;
        match fixed_node(element).filter(|_| self.parametric[symbol]) {
            Some(node) => self.known.get(&node).copied().unwrap_or(NEVER),
            None => self.symbols[symbol],
        }
    }
}

/// The symbol of an element with its parameter, where that is the same for all items.
fn fixed_node(element: &Element) -> Option<Node> {
    (!element.parameter.needs_param()).then(|| (element.symbol, element.parameter.eval(ParamValue(0)).0))
}
